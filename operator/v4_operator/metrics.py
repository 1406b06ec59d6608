"""The operator's own figures, served on its health port. The one place where they are named."""

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
    "Times a V4Deployment was looked at, by how it ended: ok, error (tried again later), or bug",
    ["result"],
    registry=REGISTRY,
)
for _result in ("ok", "error", "bug"):
    RECONCILES.labels(_result)
RECONCILE_SECONDS = Histogram(
    "v4serve_operator_reconcile_seconds",
    "Seconds that a look at one V4Deployment took, writes included",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
    registry=REGISTRY,
)
ERRORS = Counter(
    "v4serve_operator_errors",
    "Errors by kind; of several in one look at a V4Deployment, the first: api (the API server refused a request), "
    "unreachable (it did not answer), name_taken and leaving (an object of a child's name is somebody else's, or still "
    "there), kind_missing (the cluster lacks a kind), event (an Event could not be written), bug (a fault in the "
    "operator), other",
    ["kind"],
    registry=REGISTRY,
)
for _kind in KINDS:
    ERRORS.labels(_kind)
QUEUE_LENGTH = Gauge(
    "v4serve_operator_queue_length", "V4Deployments that are due to be looked at and wait for it", registry=REGISTRY
)
API_WRITES = Counter(
    "v4serve_operator_api_writes",
    "Requests that change something in the cluster, by verb and kind of object",
    ["verb", "kind"],
    registry=REGISTRY,
)
WATCH_RESTARTS = Counter(
    "v4serve_operator_watch_restarts",
    "Watches that broke off or had to list again, by kind of object",
    ["kind"],
    registry=REGISTRY,
)


def count_write(verb: str, kind: str) -> None:
    """Counts a request that changes an object of this kind."""
    API_WRITES.labels(verb, kind).inc()


LEADER = Gauge("v4serve_operator_leader", "1 while this replica holds the Lease, else 0", registry=REGISTRY)
TIME_TO_READY = Histogram(
    "v4serve_operator_time_to_ready_seconds",
    "Seconds until a V4Deployment became Ready: from its creation, or from the first look at a changed spec; only of "
    "changes that took Ready away, and once for each",
    buckets=(1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
    registry=REGISTRY,
)

_POOLS = ("prefill", "decode", "router")
_STATES = ("desired", "ready", "updated")


class DeploymentCollector(Collector):
    """What V4Deployments are like, read from caches when scraped: of one that is gone nothing is left."""

    def __init__(self) -> None:
        self._parents: Callable[[], Iterable[tuple[Key, Json]]] = tuple
        self._children: Callable[[Key, str], Iterable[Json]] = lambda _key, _uid: ()

    def show(
        self,
        parents: Callable[[], Iterable[tuple[Key, Json]]],
        children: Callable[[Key, str], Iterable[Json]],
    ) -> None:
        """Read V4Deployments, and the children of one by key and uid, from these; only a leader has any."""
        self._parents, self._children = parents, children

    def collect(self) -> Iterator[Metric]:
        """All samples of now."""
        condition = GaugeMetricFamily(
            "v4serve_deployment_condition",
            "1 for each condition of a V4Deployment with the status and the reason that it has now",
            labels=("namespace", "deployment", "type", "status", "reason"),
        )
        workers = GaugeMetricFamily(
            "v4serve_deployment_workers",
            "Workers, or routers, of a V4Deployment by state; updated: made of the spec as it is now",
            labels=("namespace", "deployment", "role", "state"),
        )
        revisions = GaugeMetricFamily(
            "v4serve_deployment_revisions",
            "Revisions of which a V4Deployment has worker Deployments or pods; more than 1 while it rolls out",
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
    """Role, state and number, as far as the status has them."""
    for role in _POOLS:
        pool: Json = status.get(role) or {}
        for state in _STATES:
            if state in pool:
                yield role, state, float(pool[state])


DEPLOYMENTS = DeploymentCollector()
REGISTRY.register(DEPLOYMENTS)
