"""The router's metrics, `v4serve_*`, in their own registry. Gauges are read from the router when they are scraped."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from v4_core.metrics import SECONDS, TOKENS, process_registry
from v4_core.v1 import worker_pb2 as pb
from v4_router.errors import Unauthorized, statuses
from v4_router.fleet import Fleet
from v4_router.placement import REASONS, RETRY

_ROLES = ("prefill", "decode")
_ENDPOINTS = ("completions", "chat")
OTHER = "other"  # route of a request without a known key that is for neither interface
_FINISHES = ("stop", "length", "abort", "error")
_RATIOS = (0.1, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0, 10.0)


@dataclass(slots=True)
class Transferred:
    """Sums over the caches that decode workers adopted."""

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0  # without the time in which the prefill worker had nothing to send

    def add(self, adopted: pb.Adopted) -> None:
        """Adds one transfer."""
        self.count += 1
        self.bytes += adopted.bytes
        self.seconds += adopted.seconds - adopted.wait_seconds


def faulty(outcome: str) -> bool:
    """Whether the service is at fault for this outcome of a request, rather than the client or nobody."""
    return outcome == "cancelled" or outcome.startswith("5")


class Metrics:
    """Counters and histograms of one router."""

    def __init__(self) -> None:
        self.transfers: dict[str, Transferred] = {}  # by revision, for listed revisions only
        self.transferred_in_all = Transferred()  # of all revisions, so that it never decreases
        self.registry = process_registry()
        self._requests()
        self._durations()
        self._tokens()
        self._placements()
        self._failures()

    def transferred(self, adopted: pb.Adopted, revision: str) -> None:
        """Counts a cache that a decode worker of this revision adopted."""
        self.transfers.setdefault(revision, Transferred()).add(adopted)
        self.transferred_in_all.add(adopted)

    def keep_revisions(self, listed: Collection[str]) -> None:
        """Drops the sums of all other revisions."""
        self.transfers = {name: sums for name, sums in self.transfers.items() if name in listed}

    def ended(self, endpoint: str, outcome: str, finishes: Iterable[str | None], *, answered: bool) -> None:
        """Counts a request by its outcome, and its choices by their finish reasons.

        `answered`: a token had reached the client.
        """
        self.requests.labels(endpoint, outcome).inc()
        cut = "error" if outcome.startswith("5") else "abort" if outcome in ("client_gone", "cancelled") else None
        for reason in (finish or cut for finish in finishes):
            if reason is not None:  # None: the request was refused before its choices began
                self.choices.labels(reason).inc()
        if faulty(outcome) and not answered:
            self.without_token.inc()

    def _requests(self) -> None:
        self.requests = self._counter(
            "v4serve_requests",
            "Requests that ended, by interface (other: neither of them, and without a known key) and by outcome: ok, "
            "client_gone, cancelled (the router stopped), or the HTTP status of the error",
            "endpoint",
            "outcome",
        )
        for endpoint in _ENDPOINTS:
            for outcome in ("ok", "client_gone", "cancelled", *statuses()):
                self.requests.labels(endpoint, outcome)
        self.requests.labels(OTHER, str(Unauthorized.status))
        self.choices = self._counter(
            "v4serve_choices",
            "Choices that ended, n for each request, by finish reason: stop, length, abort (the client disconnected or "
            "the router stopped), or error (the request failed before they finished, with a status of 5xx)",
            "reason",
        )
        for reason in _FINISHES:
            self.choices.labels(reason)
        self.without_token = self._counter(
            "v4serve_requests_without_token",
            "Requests that failed by the service's fault (a status of 5xx, or cancelled because the router stopped) "
            "before any token reached the client",
        )

    def _durations(self) -> None:
        self.ttft = self._seconds("v4serve_time_to_first_token", "Seconds from a request's arrival to its first token")
        self.itl = self._seconds(
            "v4serve_inter_token_latency", "Seconds between two tokens of one choice, as the router receives them"
        )
        self.duration = self._seconds(
            "v4serve_request_duration",
            "Seconds from a request's arrival to its last token, for requests that succeeded",
        )
        self.queue = self._seconds(
            "v4serve_request_queue",
            "Seconds from a request's arrival until a worker began to compute it: reading the body, tokenizing, "
            "placing and queueing",
        )
        self.prefill = self._seconds(
            "v4serve_request_prefill", "Seconds from when a worker began to compute a request until its first token"
        )
        self.decode = self._seconds(
            "v4serve_request_decode",
            "Seconds from a request's first to its last token, for requests that succeeded",
        )
        self.estimated_ttft = self._seconds(
            "v4serve_estimated_time_to_first_token",
            "Seconds until a prompt's first token, as estimated at its placement: tokens to compute until the prompt "
            "is done, divided by the measured rate of the prefill worker",
        )
        self.ttft_error = self._histogram(
            "v4serve_time_to_first_token_error_ratio",
            "Seconds from the placement of a prompt to its first token, divided by the router's estimate; 1 = as "
            "estimated, more = slower",
            _RATIOS,
        )

    def _tokens(self) -> None:
        self.request_prompt_tokens = self._histogram(
            "v4serve_request_prompt_tokens", "Prompt tokens of a request that succeeded", TOKENS
        )
        self.request_generated_tokens = self._histogram(
            "v4serve_request_generated_tokens",
            "Tokens generated for all choices of a request that succeeded",
            TOKENS,
        )
        self.prompt_tokens = self._counter("v4serve_prompt_tokens", "Tokens of prompts that a worker began to compute")
        self.cached_tokens = self._counter(
            "v4serve_cached_prompt_tokens",
            "Tokens of prompts that were found in a worker's cache, so that they were not computed again",
        )
        self.generated_tokens = self._counter(
            "v4serve_generated_tokens", "Tokens generated, counted when the router receives them"
        )

    def _placements(self) -> None:
        self.placements = self._counter(
            "v4serve_placements",
            "Placements of prompts, by reason: prefix (the worker has a part of it cached), least-queued, retry (after "
            "a failure), no-prefill-worker and no-prefill-left (a decode worker computes it alone)",
            "reason",
        )
        for reason in (*REASONS, RETRY):
            self.placements.labels(reason)
        self.elsewhere = self._counter(
            "v4serve_prefix_elsewhere_tokens",
            "Prompt tokens that another prefill worker had cached but the chosen one had not, by the router's guess",
        )
        self.probe_seconds = self._seconds(
            "v4serve_probe", "Seconds that a probe of a worker took, for probes that passed"
        )
        self.probe_failures = self._counter(
            "v4serve_probe_failures", "Probes of workers that failed, by the role of the worker", "role"
        )
        for role in _ROLES:
            self.probe_failures.labels(role)

    def _failures(self) -> None:
        self.retries = self._counter(
            "v4serve_retries",
            "Legs of requests that failed and were placed again, by role of the worker and by reason; lost = the "
            "connection to the worker was lost",
            "role",
            "reason",
        )
        for role in _ROLES:
            for reason in ("lost", *(name.lower() for name in ("OVERLOADED", "DRAINING", "TRANSFER", "INTERNAL"))):
                self.retries.labels(role, reason)
        self.recomputations = self._counter(
            "v4serve_recomputations", "Prompts that had to be computed again after a failure"
        )
        self.migrations = self._counter(
            "v4serve_migrations", "Choices that continued on another worker from the tokens they already had"
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _seconds(self, name: str, text: str) -> Histogram:
        return self._histogram(f"{name}_seconds", text, SECONDS)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)


class FleetCollector(Collector):
    """Gauges of the router and of its workers. A worker that is no longer listed has no sample."""

    def __init__(self, fleet: Fleet, requests: Callable[[], int]) -> None:
        """`requests` returns the number of requests that are being served."""
        self._fleet = fleet
        self._requests = requests

    def collect(self) -> Iterator[Metric]:
        """Yields the current samples."""
        yield GaugeMetricFamily("v4serve_requests_running", "Requests that the router is serving", self._requests())
        yield GaugeMetricFamily(
            "v4serve_requests_waiting_for_room",
            "Caches that wait on prefill workers until a decode worker has room for them",
            len(self._fleet.room_queue),
        )
        labels = ("worker", "role")
        up = GaugeMetricFamily("v4serve_worker_up", "1 while the router is connected to the worker", labels=labels)
        routable = GaugeMetricFamily(
            "v4serve_worker_routable", "1 while the router may send requests to the worker", labels=labels
        )
        placed = CounterMetricFamily(
            "v4serve_placed_tokens",
            "Prompt tokens placed on the worker: once for each prompt on prefill, once for each choice on decode",
            labels=labels,
        )
        for link in self._fleet.links.values():
            name = (link.address, link.role)
            up.add_metric(name, float(link.up))
            routable.add_metric(name, float(link.usable))
            placed.add_metric(name, link.placed_tokens)
        yield from (up, routable, placed)
