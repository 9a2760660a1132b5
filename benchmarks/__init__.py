"""Measurements that are too long, or need too much, to be tests; each is `python -m benchmarks.<name>`."""
