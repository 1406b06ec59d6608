"""The router's metrics, `v4serve_*`, in a registry of their own. Gauges of workers are read when scraped."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from v4_core.v1 import worker_pb2 as pb
from v4_router.workers import WorkerLink

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

# Field of Load, metric, what it says.
_GAUGES = (
    ("running", "running_sequences", "Sequences in the worker's batch"),
    ("waiting", "waiting_requests", "Requests that the worker has not admitted yet"),
    ("queued_tokens", "queued_tokens", "Prompt tokens that the worker has still to compute"),
    ("slots_total", "slots", "Block slots of the worker's arena"),
    ("slots_free", "free_slots", "Block slots that hold nothing"),
    ("slots_evictable", "evictable_slots", "Block slots that hold what nobody uses now"),
    ("blocks_used", "blocks_used", "Blocks that are open, or complete and referenced"),
    ("checkpoint_slots_used", "checkpoint_slots_used", "Block slots that hold checkpoints"),
    ("tails_total", "tails", "Live tails that the worker has room for"),
    ("tails_used", "tails_used", "Live tails in use"),
    ("leases", "leases", "Caches that are held for a decode worker"),
)


@dataclass(slots=True)
class Transferred:
    """Sums over adopted caches."""

    bytes: int = 0
    seconds: float = 0.0


class Metrics:
    """Counters and histograms of one router."""

    def __init__(self) -> None:
        self.transfers: dict[str, Transferred] = {}  # by revision
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "v4serve_requests", "Requests by interface and outcome", ["endpoint", "outcome"], registry=registry
        )
        self.ttft = Histogram(
            "v4serve_time_to_first_token_seconds",
            "From arrival to the first token",
            buckets=_SECONDS,
            registry=registry,
        )
        self.itl = Histogram(
            "v4serve_inter_token_latency_seconds", "Between tokens of a choice", buckets=_SECONDS, registry=registry
        )
        self.duration = Histogram(
            "v4serve_request_duration_seconds", "From arrival to the last token", buckets=_SECONDS, registry=registry
        )
        self.prompt_tokens = Counter("v4serve_prompt_tokens", "Tokens of prompts", registry=registry)
        self.cached_tokens = Counter(
            "v4serve_cached_prompt_tokens", "Tokens of prompts that were not computed again", registry=registry
        )
        self.generated_tokens = Counter("v4serve_generated_tokens", "Tokens sent to clients", registry=registry)
        self.retries = Counter(
            "v4serve_retries", "Legs that failed and were placed again", ["role", "reason"], registry=registry
        )
        self.recomputations = Counter(
            "v4serve_recomputations", "Prompts computed again after a failure", registry=registry
        )
        self.migrations = Counter(
            "v4serve_migrations", "Choices continued on other workers from their tokens so far", registry=registry
        )
        self.transfer_bytes = Counter("v4serve_transferred_bytes", "Bytes of adopted caches", registry=registry)
        self.transfer_seconds = Histogram(
            "v4serve_transfer_seconds", "Duration of adopted pulls", buckets=_SECONDS, registry=registry
        )

    def transferred(self, adopted: pb.Adopted, revision: str) -> None:
        """A decode worker of this revision has a cache."""
        sums = self.transfers.setdefault(revision, Transferred())
        sums.bytes += adopted.bytes
        sums.seconds += adopted.seconds
        self.transfer_bytes.inc(adopted.bytes)
        self.transfer_seconds.observe(adopted.seconds)


class WorkerCollector(Collector):
    """What the workers said last of themselves."""

    def __init__(self, links: Mapping[str, WorkerLink]) -> None:
        self._links = links

    def collect(self) -> Iterator[Metric]:
        """One sample per worker; of a worker that is down only that."""
        labels = ("worker", "role")
        up = GaugeMetricFamily("v4serve_worker_up", "Whether the router hears the worker", labels=labels)
        for link in self._links.values():
            up.add_metric((link.address, link.role), float(link.up))
        yield up
        for field, name, text in _GAUGES:
            gauge = GaugeMetricFamily(f"v4serve_worker_{name}", text, labels=labels)
            for link in self._links.values():
                if link.up:
                    gauge.add_metric((link.address, link.role), getattr(link.load, field))
            yield gauge
        preemptions = CounterMetricFamily(
            "v4serve_worker_preemptions", "Sequences that the worker put back", labels=labels
        )
        for link in self._links.values():
            if link.up:
                preemptions.add_metric((link.address, link.role), link.load.preemptions)
        yield preemptions
