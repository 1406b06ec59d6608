"""The Grafana dashboards of v4serve, as code."""
