"""Chooses the workers of a prompt: a prefill and a decode worker, or a decode worker alone. Pure.

The cost of a worker is the number of tokens to compute there until the prompt is done. A placement is a hint: the
worker itself finds what it has cached, and may refuse.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "prefix"
LEAST_QUEUED: Final = "least-queued"
NO_PREFILL_WORKER: Final = "no-prefill-worker"
NO_PREFILL_LEFT: Final = "no-prefill-left"
RETRY: Final = "retry"  # instead of these, for a placement after a failure
REASONS: Final = (PREFIX, LEAST_QUEUED, NO_PREFILL_WORKER, NO_PREFILL_LEFT)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What the router knows about a worker that is up."""

    address: str
    kind: tuple[str, str]  # revision and fingerprint: caches move only between workers with the same ones
    queued_tokens: int  # prompt tokens not computed yet: those reported, and those sent since the report
    sequences: int  # running and waiting: those reported, and those sent since the report
    cached_tokens: int = 0  # of the prompt to be placed, by the router's guess


@dataclass(frozen=True, slots=True)
class Placement:
    """A pair of workers, or a decode worker alone if `prefill` is None."""

    prefill: str | None
    decode: str
    reason: str  # one of REASONS
    queued_tokens: int = 0  # prompt tokens queued before this prompt on the prefill worker
    cached_tokens: int = 0  # of the prompt on the prefill worker, by the router's guess
    elsewhere_tokens: int = 0  # of the prompt, cached on another prefill worker but not on this one


def place(
    prompt_tokens: int,
    prefill: Sequence[WorkerView],
    decode: Sequence[WorkerView],
    *,
    turn: int,
    avoid: Collection[str] = (),
    fingerprint: str | None = None,
    alone: bool = True,
) -> Placement | None:
    """Returns the cheapest placement.

    The prefill worker is the one with the fewest tokens to compute until this prompt is done, the decode worker the one
    with the fewest sequences. Both have one kind, and `fingerprint` if it is given. Workers of equal cost take turns:
    `turn` counts placements. Returns None if no decode worker is left, or if no prefill worker is left and decode
    workers may not compute prompts (`alone`).
    """
    usable = [w for w in decode if w.address not in avoid and fingerprint in (None, w.kind[1])]
    if not usable:
        return None
    kinds = {w.kind for w in usable}
    sources = [w for w in prefill if w.address not in avoid and w.kind in kinds]
    if not sources and not alone:
        return None
    if not sources:
        reason = NO_PREFILL_LEFT if prefill else NO_PREFILL_WORKER
        return Placement(None, _least(usable, [w.sequences for w in usable], turn).address, reason)
    costs = [w.queued_tokens + prompt_tokens - _cached(w, prompt_tokens) for w in sources]
    source = _least(sources, costs, turn)
    partners = [w for w in usable if w.kind == source.kind]
    target = _least(partners, [w.sequences for w in partners], turn)
    cached = _cached(source, prompt_tokens)
    return Placement(
        source.address,
        target.address,
        PREFIX if source.cached_tokens else LEAST_QUEUED,
        queued_tokens=source.queued_tokens,
        cached_tokens=cached,
        elsewhere_tokens=max(_cached(w, prompt_tokens) for w in sources) - cached,
    )


def _cached(worker: WorkerView, prompt_tokens: int) -> int:
    return min(worker.cached_tokens, prompt_tokens)


def _least(workers: Sequence[WorkerView], costs: Sequence[int], turn: int) -> WorkerView:
    least = min(costs)
    equals = [w for w, cost in zip(workers, costs, strict=True) if cost == least]
    return equals[turn % len(equals)]
