"""What the page and `v4serve top` draw of a router and its workers: rates and latencies of the last seconds, who holds
what. Pure: reads no clock and asks nobody. Imports nothing of the router, so that `v4serve top` needs none of it.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from math import inf
from typing import Any, get_args, get_origin, get_type_hints

WINDOW_SECONDS = 10.0  # that rates and quantiles are about, at most
APART_SECONDS = 0.5  # between samples that are kept; rates over less say nothing
_ROLES = ("prefill", "decode")

Buckets = Mapping[float, float]  # how many seconds were no more than each bound


@dataclass(frozen=True)
class Sample:
    """What a router has counted since it began."""

    at: float  # seconds
    requests: float
    failed: float  # of them
    prompt_tokens: float
    cached_tokens: float  # of them
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
class Itself:
    """The router now."""

    version: str
    served_name: str
    ready: bool
    requests: int
    waiting_for_room: int


@dataclass(frozen=True)
class Facts:
    """A router and its workers; None stands for what nothing was seen of."""

    seconds: float  # that rates and quantiles are about
    router: Itself
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


class Recent:
    """The samples of the last seconds. All who look share it: nobody's look changes what another's is compared with."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def add(self, now: Sample) -> Sample:
        """The oldest sample of the window; `now` itself where none is old enough to be compared with."""
        samples = self._samples
        while samples and now.at - samples[0].at > WINDOW_SECONDS:
            samples.popleft()
        if not samples or now.at - samples[-1].at >= APART_SECONDS:
            samples.append(now)
        return samples[0] if now.at - samples[0].at >= APART_SECONDS else now


def facts(before: Sample, now: Sample, fleet: Mapping[str, Any], waiting_for_room: int) -> Facts:
    """What was counted from one sample to another, and what is; `fleet` is what /fleet tells."""
    seconds = now.at - before.at
    prompt_tokens = now.prompt_tokens - before.prompt_tokens
    transferred = now.transferred_bytes - before.transferred_bytes
    router, workers = fleet["router"], fleet["workers"]
    return Facts(
        seconds=seconds,
        router=Itself(router["version"], router["served_name"], router["ready"], router["requests"], waiting_for_room),
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
    """Of cumulative counts by rising bounds: even within a bucket, as Prometheus takes it; beyond the last, its
    bound. None without any count."""
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


def from_json(told: object) -> Facts:
    """What a router answers at /facts. Raises KeyError or TypeError on what no router of this version says."""
    read: Facts = _read(Facts, told)
    return read


def _read(kind: Any, told: Any) -> Any:
    """As an annotation of the dataclasses above wants it."""
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(told, dict):
        hints = get_type_hints(kind)
        return kind(**{field.name: _read(hints[field.name], told[field.name]) for field in fields(kind)})
    if get_origin(kind) is Sequence and isinstance(told, list):
        return [_read(get_args(kind)[0], one) for one in told]
    if isinstance(told, kind) or (isinstance(told, int) and isinstance(0.0, kind)):
        return told
    raise TypeError(f"a {type(told).__name__} is no {kind}")
