"""Where a request runs: prefill and decode, or decode alone. A pure function of what is known of the workers.

Costs are tokens still to be computed before this prompt would be done; they become seconds when workers report their
rates. A placement is a hint: the worker decides what it has, and may refuse.
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
    """What the router knows of a worker that is up."""

    address: str
    kind: tuple[str, str]  # revision and fingerprint: caches move between equals only
    queued_tokens: int  # prompt tokens not yet computed: as reported, and what was sent since
    sequences: int  # running and waiting: as reported, and what was sent since
    cached_tokens: int = 0  # of the prompt to be placed, by the router's guess


@dataclass(frozen=True, slots=True)
class Placement:
    """A pair, or decode alone when `prefill` is None."""

    prefill: str | None
    decode: str
    reason: str  # one of REASONS
    queued_tokens: int = 0  # prompt tokens ahead of this prompt on the prefill worker
    cached_tokens: int = 0  # of the prompt on the prefill worker, by the router's guess
    elsewhere_tokens: int = 0  # of the prompt that another prefill worker has, and this one has not


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
    """The cheapest placement, or None if no decode worker is left; or no prefill worker, unless decode may go `alone`.

    Prefill: fewest tokens to compute until this prompt is done. Decode: fewest sequences. Both of one kind, and of the
    given fingerprint if tokens of it were already sent. Equals take turns: `turn` counts placements.
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
