"""From two plans to a transition: T_sub, local DAGs, the global DAG, and the programs that endpoints carry out."""
