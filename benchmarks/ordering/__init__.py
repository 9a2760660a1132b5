"""The parts of `python -m benchmarks.transition_dag`: what is asked of the ordering, of the solvers, and of the checker."""
