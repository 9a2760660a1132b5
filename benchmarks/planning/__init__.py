"""The parts of `python -m benchmarks.planner`: problems whose cost table is the truth, and what is measured on them."""
