"""The figures that the page and `v4serve top` draw: rates and latencies of the last seconds, and each worker's load.

Pure: reads no clock and does no I/O. Imports nothing else of the router, so that `v4serve top` runs without the
router's dependencies.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from math import inf
from typing import Any, get_args, get_origin, get_type_hints

WINDOW_SECONDS = 10.0  # longest period over which rates and quantiles are computed
APART_SECONDS = 0.5  # shortest such period, and the least distance of two samples that are kept
_ROLES = ("prefill", "decode")

Buckets = Mapping[float, float]  # of a histogram of seconds: upper bound to cumulative count


@dataclass(frozen=True)
class Sample:
    """A router's counters at one time, counted since the router started."""

    at: float  # seconds on a monotonic clock
    requests: float
    failed: float  # of the requests
    prompt_tokens: float
    cached_tokens: float  # of the prompt tokens
    generated_tokens: float
    ttft: Buckets
    itl: Buckets
    transfers: float
    transferred_bytes: float
    transfer_seconds: float
    retries: float
    recomputations: float
    migrations: float


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of a latency in seconds; None if nothing was observed."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True)
class Worker:
    """One worker, as it last reported itself. Slots are block slots of the cache."""

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
    """All workers of a role. The sums are over the workers that are up."""

    role: str
    ready: int
    running: int
    waiting: int
    queued_tokens: int
    leases: int
    workers: Sequence[Worker]


@dataclass(frozen=True)
class Revision:
    """A revision: whether it has a probed pair of workers that takes requests, and the error if not."""

    name: str
    serves: bool
    error: str


@dataclass(frozen=True)
class RouterState:
    """The router's own state."""

    version: str
    served_name: str
    ready: bool
    requests: int
    waiting_for_room: int


@dataclass(frozen=True)
class Facts:
    """A router and its workers. A rate is per second, and None if nothing was observed in the period."""

    seconds: float  # length of the period over which rates and quantiles are computed
    router: RouterState
    requests: float | None
    failed: float | None
    prompt_tokens: float | None
    generated_tokens: float | None
    hit_ratio: float | None  # share of the prompt tokens that were cached, 0 to 1
    ttft: Quantiles
    itl: Quantiles
    transfers: float | None
    transferred_bytes: float | None
    transfer_speed: float | None  # bytes per second while a transfer runs
    retries: float  # since the router started
    recomputations: float  # since the router started
    migrations: float  # since the router started
    pools: Sequence[Pool]
    revisions: Sequence[Revision]


class Recent:
    """The samples of the last seconds, shared by all readers: one reader's requests do not change another's rates."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def add(self, now: Sample) -> Sample:
        """Adds a sample, and returns the oldest one of the window; `now` itself if none is APART_SECONDS older."""
        samples = self._samples
        while samples and now.at - samples[0].at > WINDOW_SECONDS:
            samples.popleft()
        if not samples or now.at - samples[-1].at >= APART_SECONDS:
            samples.append(now)
        return samples[0] if now.at - samples[0].at >= APART_SECONDS else now


def facts(before: Sample, now: Sample, fleet: Mapping[str, Any], waiting_for_room: int) -> Facts:
    """Returns the rates between two samples and the present state. `fleet` is the answer to /fleet."""
    seconds = now.at - before.at
    prompt_tokens = now.prompt_tokens - before.prompt_tokens
    transferred = now.transferred_bytes - before.transferred_bytes
    router, workers = fleet["router"], fleet["workers"]
    return Facts(
        seconds=seconds,
        router=RouterState(
            router["version"], router["served_name"], router["ready"], router["requests"], waiting_for_room
        ),
        requests=_over(now.requests - before.requests, seconds),
        failed=_over(now.failed - before.failed, seconds),
        prompt_tokens=_over(prompt_tokens, seconds),
        generated_tokens=_over(now.generated_tokens - before.generated_tokens, seconds),
        hit_ratio=_over(now.cached_tokens - before.cached_tokens, prompt_tokens),
        ttft=_quantiles(before.ttft, now.ttft),
        itl=_quantiles(before.itl, now.itl),
        transfers=_over(now.transfers - before.transfers, seconds),
        transferred_bytes=_over(transferred, seconds),
        transfer_speed=_over(transferred, now.transfer_seconds - before.transfer_seconds),
        retries=now.retries,
        recomputations=now.recomputations,
        migrations=now.migrations,
        pools=[_pool(role, [_worker(one) for one in workers if one["role"] == role]) for role in _ROLES],
        revisions=[Revision(one["revision"], one["probed"], one["error"]) for one in fleet["revisions"]],
    )


def _over(amount: float, by: float) -> float | None:
    return amount / by if by > 0 else None


def _quantiles(before: Buckets, now: Buckets) -> Quantiles:
    buckets = sorted((bound, count - before[bound]) for bound, count in now.items())
    return Quantiles(*(quantile(share, buckets) for share in (0.5, 0.9, 0.99)))


def quantile(share: float, buckets: Sequence[tuple[float, float]]) -> float | None:
    """Returns a quantile of a histogram, given as (upper bound, cumulative count) by rising bound; None if it is empty.

    Interpolates linearly within a bucket, as Prometheus does. In the bucket without an upper bound, returns its lower
    bound.
    """
    rank = share * buckets[-1][1]
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
    up = [worker for worker in members if worker.state != "down"]  # the last report of a worker that is down is stale
    return Pool(
        role=role,
        ready=sum(worker.state == "ready" for worker in members),
        running=sum(worker.running for worker in up),
        waiting=sum(worker.waiting for worker in up),
        queued_tokens=sum(worker.queued_tokens for worker in up),
        leases=sum(worker.leases for worker in up),
        workers=members,
    )


def from_json(answer: object) -> Facts:
    """Returns the facts in the decoded JSON of /facts.

    Raises KeyError or TypeError if a router of this version cannot have sent it.
    """
    read: Facts = _read(Facts, answer)
    return read


def _read(kind: Any, value: Any) -> Any:
    """Converts a decoded JSON value to `kind`, the annotation of a field of the dataclasses above."""
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        return kind(**{field.name: _read(hints[field.name], value[field.name]) for field in fields(kind)})
    if get_origin(kind) is Sequence and isinstance(value, list):
        return [_read(get_args(kind)[0], one) for one in value]
    if isinstance(value, kind) or (isinstance(value, int) and isinstance(0.0, kind)):
        return value
    raise TypeError(f"a {type(value).__name__} is not a {kind}")
