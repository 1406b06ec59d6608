"""The operator's metrics, served on its health port. Their names appear nowhere else in the package."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from v4_core.kubernetes import REVISION_LABEL, Json
from v4_core.metrics import process_registry
from v4_operator.errors import KINDS
from v4_operator.observed.objects import Key

REGISTRY = process_registry()

RECONCILES = Counter(
    "v4serve_operator_reconciles",
    "Reconciles of V4Deployments by result: ok, error (retried later), or bug (a fault in the operator; retried later)",
    ["result"],
    registry=REGISTRY,
)
for _result in ("ok", "error", "bug"):
    RECONCILES.labels(_result)
RECONCILE_SECONDS = Histogram(
    "v4serve_operator_reconcile_seconds",
    "Duration of one reconcile of a V4Deployment, including its writes",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
    registry=REGISTRY,
)
ERRORS = Counter(
    "v4serve_operator_errors",
    "Errors by kind; of several errors in one reconcile, the first: api (the API server refused a request), "
    "unreachable (the API server did not answer), name_taken (an object with the name of a child belongs to somebody "
    "else), leaving (an object with the name of a child is still being deleted), kind_missing (the cluster lacks a "
    "kind), event (an Event could not be created), bug (a fault in the operator), other",
    ["kind"],
    registry=REGISTRY,
)
for _kind in KINDS:
    ERRORS.labels(_kind)
QUEUE_LENGTH = Gauge(
    "v4serve_operator_queue_length", "V4Deployments that are due for a reconcile and wait for it", registry=REGISTRY
)
API_WRITES = Counter(
    "v4serve_operator_api_writes",
    "Requests to the API server that change an object, by verb and kind of object",
    ["verb", "kind"],
    registry=REGISTRY,
)
WATCH_RESTARTS = Counter(
    "v4serve_operator_watch_restarts",
    "Watches that failed and were restarted, by kind of object",
    ["kind"],
    registry=REGISTRY,
)


def count_write(verb: str, kind: str) -> None:
    """Counts a request that changes an object of this kind."""
    API_WRITES.labels(verb, kind).inc()


LEADER = Gauge("v4serve_operator_leader", "1 while this replica leads, else 0", registry=REGISTRY)
TIME_TO_READY = Histogram(
    "v4serve_operator_time_to_ready_seconds",
    "Time until a V4Deployment became Ready, from its creation or from the first reconcile of a changed spec; measured "
    "once for each change that made it not Ready",
    buckets=(1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
    registry=REGISTRY,
)

_POOLS = ("prefill", "decode", "router")
_STATES = ("desired", "ready", "updated")


class DeploymentCollector(Collector):
    """Metrics of V4Deployments, read from the caches at each scrape, so that a deleted one leaves no samples."""

    def __init__(self) -> None:
        self._parents: Callable[[], Iterable[tuple[Key, Json]]] = tuple
        self._children: Callable[[Key, str], Iterable[Json]] = lambda _key, _uid: ()

    def show(
        self,
        parents: Callable[[], Iterable[tuple[Key, Json]]],
        children: Callable[[Key, str], Iterable[Json]],
    ) -> None:
        """Sets the source of V4Deployments, and of the children of one by key and uid. Only a leader has any."""
        self._parents, self._children = parents, children

    def collect(self) -> Iterator[Metric]:
        """Yields the present samples."""
        condition = GaugeMetricFamily(
            "v4serve_deployment_condition",
            "1 for each condition of a V4Deployment, with its present status and reason",
            labels=("namespace", "deployment", "type", "status", "reason"),
        )
        workers = GaugeMetricFamily(
            "v4serve_deployment_workers",
            "Workers or routers of a V4Deployment by state; updated: created from the present spec",
            labels=("namespace", "deployment", "role", "state"),
        )
        revisions = GaugeMetricFamily(
            "v4serve_deployment_revisions",
            "Revisions with worker Deployments or pods of a V4Deployment; more than 1 during a rollout",
            labels=("namespace", "deployment"),
        )
        for key, parent in self._parents():
            name = (key.namespace, key.name)
            status: Json = parent.get("status") or {}
            for each in status.get("conditions") or ():
                condition.add_metric((*name, each["type"], each["status"], each["reason"]), 1.0)
            for role, state, number in _workers(status):
                workers.add_metric((*name, role, state), number)
            revisions.add_metric(name, self._revisions(key, parent))
        yield from (condition, workers, revisions)

    def _revisions(self, key: Key, parent: Json) -> int:
        children = self._children(key, parent["metadata"]["uid"])
        labels = [child["metadata"].get("labels") or {} for child in children if child["kind"] in ("Deployment", "Pod")]
        return len({revision for each in labels if (revision := each.get(REVISION_LABEL))})


def _workers(status: Json) -> Iterator[tuple[str, str, float]]:
    """Yields role, state and number of each pool in the status."""
    for role in _POOLS:
        pool: Json = status.get(role) or {}
        for state in _STATES:
            if state in pool:
                yield role, state, float(pool[state])


DEPLOYMENTS = DeploymentCollector()
REGISTRY.register(DEPLOYMENTS)
