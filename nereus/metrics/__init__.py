"""The metrics: one table of all that Prometheus is told, read from projections; docs/metrics.md is made from it."""
