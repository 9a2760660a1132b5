"""Judging the cost model by measurements that others published."""
