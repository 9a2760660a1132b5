"""The Grafana dashboards, declared as panels of queries; `python -m deploy.grafana` writes the JSON that the chart ships."""
