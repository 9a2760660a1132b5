"""When to change, and whether it pays. Thresholds live here and nowhere else."""
