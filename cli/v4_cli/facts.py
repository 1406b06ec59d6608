"""What a router's /fleet and /metrics mean, looked at again and again. Pure: draws nothing, asks nobody.

The router's page has the same in JavaScript (router/v4_router/page/facts.js), and a test holds the two together.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

TTFT = "v4serve_time_to_first_token_seconds_bucket"
ITL = "v4serve_inter_token_latency_seconds_bucket"
_ROOM = "v4serve_requests_waiting_for_room"  # the only gauge
_METRICS = {
    "v4serve_requests_total",
    "v4serve_prompt_tokens_total",
    "v4serve_cached_prompt_tokens_total",
    "v4serve_generated_tokens_total",
    "v4serve_retries_total",
    "v4serve_recomputations_total",
    "v4serve_migrations_total",
    TTFT,
    ITL,
    _ROOM,
}
_TRANSFERS = ("transfers", "transferred_bytes", "transfer_seconds")  # of all revisions ever, from /fleet
_ROUTER = ("version", "served_name", "ready", "requests")
_NO_FAULT = {"ok", "client_gone"}
_ROLES = ("prefill", "decode")

# Sums by name and detail: the outcome of requests, the bound of a bucket.
Values = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Scrape:
    """One look at a router."""

    at: float  # seconds
    fleet: Mapping[str, Any]
    values: Values


@dataclass(frozen=True)
class Quantiles:
    """In seconds."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True)
class Worker:
    """One worker, by its own word; slots are block slots."""

    name: str
    address: str
    revision: str
    state: str
    error: str
    running: int
    waiting: int
    queued_tokens: int
    slots: int
    used: int
    checkpoint: int
    cached: int
    free: int
    tails: int
    tails_used: int
    leases: int


@dataclass(frozen=True)
class Pool:
    """All workers of a role; sums are over those that are up."""

    role: str
    ready: int
    running: int
    waiting: int
    queued_tokens: int
    leases: int
    workers: Sequence[Worker]


@dataclass(frozen=True)
class Revision:
    """Whether tokens go through a pair of its workers, or why not."""

    name: str
    serves: bool
    error: str


@dataclass(frozen=True)
class Facts:
    """A router and its workers; None stands for what nothing was seen of."""

    seconds: float  # that rates and quantiles are about
    router: Mapping[str, Any]
    requests: float | None  # a second, as all rates
    failed: float | None
    prompt_tokens: float | None
    generated_tokens: float | None
    hit_ratio: float | None  # of prompt tokens
    ttft: Quantiles
    itl: Quantiles
    transfers: float | None
    transferred_bytes: float | None
    transfer_speed: float | None  # bytes a second of one transfer
    retries: float  # since the router began, as the next two
    recomputations: float
    migrations: float
    pools: Sequence[Pool]
    revisions: Sequence[Revision]


def scrape(at: float, fleet: Mapping[str, Any], text: str) -> Scrape:
    """`text` is that of /metrics. Raises ValueError, KeyError or TypeError where no router tells so."""
    values: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in _METRICS:
                detail = sample.labels.get("le") or sample.labels.get("outcome", "")
                values[sample.name][detail] += sample.value
    for name in _TRANSFERS:
        values[name][""] += fleet["router"][name]
    return Scrape(at, fleet, {name: dict(details) for name, details in values.items()})


class Recent:
    """The looks of the last seconds. A value that went down says that the router restarted: then what it counted since
    counts."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scrapes: deque[Scrape] = deque()

    def add(self, scrape: Scrape) -> Facts:
        """What is known once this one is added."""
        if self._scrapes and _restarted(self._scrapes[-1], scrape):
            self._scrapes = deque([replace(self._scrapes[-1], values={})])
        self._scrapes.append(scrape)
        while len(self._scrapes) > 2 and self._scrapes[1].at <= scrape.at - self._seconds:
            self._scrapes.popleft()
        return facts(self._scrapes[0], scrape)


def _restarted(before: Scrape, after: Scrape) -> bool:
    return any(
        value < before.values.get(name, {}).get(detail, 0)
        for name, details in after.values.items()
        if name != _ROOM
        for detail, value in details.items()
    )


def facts(before: Scrape, after: Scrape) -> Facts:
    """What two looks tell, within which the router did not restart. Raises KeyError or TypeError as `scrape` does."""
    seconds = after.at - before.at

    def grown(name: str) -> dict[str, float]:
        earlier = before.values.get(name, {})
        return {detail: value - earlier.get(detail, 0) for detail, value in after.values.get(name, {}).items()}

    def rate(growth: Mapping[str, float]) -> float | None:
        return _over(sum(growth.values()), seconds)

    def total(name: str) -> float:
        return sum(after.values.get(name, {}).values())

    requests = grown("v4serve_requests_total")
    prompt = grown("v4serve_prompt_tokens_total")
    moved = grown("transferred_bytes")
    router, workers = after.fleet["router"], after.fleet["workers"]
    return Facts(
        seconds=seconds,
        router={**{name: router[name] for name in _ROUTER}, "waiting_for_room": total(_ROOM)},
        requests=rate(requests),
        failed=rate({outcome: count for outcome, count in requests.items() if outcome not in _NO_FAULT}),
        prompt_tokens=rate(prompt),
        generated_tokens=rate(grown("v4serve_generated_tokens_total")),
        hit_ratio=_over(sum(grown("v4serve_cached_prompt_tokens_total").values()), sum(prompt.values())),
        ttft=_quantiles(grown(TTFT)),
        itl=_quantiles(grown(ITL)),
        transfers=rate(grown("transfers")),
        transferred_bytes=rate(moved),
        transfer_speed=_over(sum(moved.values()), sum(grown("transfer_seconds").values())),
        retries=total("v4serve_retries_total"),
        recomputations=total("v4serve_recomputations_total"),
        migrations=total("v4serve_migrations_total"),
        pools=[_pool(role, [_worker(one) for one in workers if one["role"] == role]) for role in _ROLES],
        revisions=[Revision(one["revision"], one["probed"], one["error"]) for one in after.fleet["revisions"]],
    )


def _over(amount: float, by: float) -> float | None:
    return amount / by if by > 0 else None


def _quantiles(counts: Mapping[str, float]) -> Quantiles:
    buckets = sorted((float(bound), count) for bound, count in counts.items())
    return Quantiles(*(quantile(share, buckets) for share in (0.5, 0.9, 0.99)))


def quantile(share: float, buckets: Sequence[tuple[float, float]]) -> float | None:
    """Of cumulative counts by rising bounds: even within a bucket, as Prometheus takes it; beyond the last, its
    bound. None without any count."""
    rank = share * buckets[-1][1] if buckets else 0
    if rank <= 0:
        return None
    for (lower, below), (bound, count) in pairwise([(0.0, 0.0), *buckets]):
        if count >= rank:
            return lower if bound == inf else lower + (bound - lower) * (rank - below) / (count - below)
    return None


def _worker(one: Mapping[str, Any]) -> Worker:
    load = one["load"]
    return Worker(
        name=one["pod"] or one["address"],
        address=one["address"],
        revision=one["revision"],
        state=one["state"],
        error=one["error"],
        running=load["running"],
        waiting=load["waiting"],
        queued_tokens=load["queued_tokens"],
        slots=load["slots_total"],
        used=load["blocks_used"],
        checkpoint=load["checkpoint_slots_used"],
        cached=load["slots_evictable"] - load["checkpoint_slots_used"],
        free=load["slots_free"],
        tails=load["tails_total"],
        tails_used=load["tails_used"],
        leases=load["leases"],
    )


def _pool(role: str, workers: Iterable[Worker]) -> Pool:
    members = sorted(workers, key=lambda worker: worker.name)
    up = [worker for worker in members if worker.state != "down"]  # the others' last word is old
    return Pool(
        role=role,
        ready=sum(worker.state == "ready" for worker in members),
        running=sum(worker.running for worker in up),
        waiting=sum(worker.waiting for worker in up),
        queued_tokens=sum(worker.queued_tokens for worker in up),
        leases=sum(worker.leases for worker in up),
        workers=members,
    )
