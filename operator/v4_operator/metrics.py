"""The operator's own figures, served on its health port. The one place where they are named."""

from prometheus_client import Counter, Gauge, Histogram

RECONCILES = Counter("v4serve_operator_reconciles", "Times a V4Deployment was looked at, by how it ended.", ["result"])
RECONCILE_SECONDS = Histogram(
    "v4serve_operator_reconcile_seconds",
    "Duration of looking at one V4Deployment, writes included.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
)
API_WRITES = Counter("v4serve_operator_api_writes", "Requests that change something in the cluster.", ["verb", "kind"])
WATCH_RESTARTS = Counter("v4serve_operator_watch_restarts", "Watches that broke off or had to list again.", ["kind"])
LEADER = Gauge("v4serve_operator_leader", "1 while this replica holds the Lease.")
