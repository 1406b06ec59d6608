"""Decides how many workers each revision should have. Pure: the next stage depends on the observed workers only.

All sizes are (prefill, decode) numbers of workers. The current revision is that of the spec; all others are old. At
most one old revision is kept: the one that serves best. It carries the traffic until the current revision is ready and
probed, so a third revision removes the second. An old revision that does not serve and never did is not kept.

Surge creates all workers of the current revision beside the old revision.

Replace never exceeds the requested number of workers. With n = min(prefill, decode) >= 2 it proceeds in n stages: at
stage k the current revision has size(k) = (prefill k/n, decode k/n), rounded, and the old revision at most the rest.
Both revisions then have a worker of each role at every stage before the last, in about the requested ratio. A stage is
complete when its workers are ready and probed. New workers are created only after the pods of old ones are gone,
because a draining worker still holds its devices. With n <= 1 the only prefill or decode worker cannot be in both
revisions: the old revision is removed first, and nothing serves until the current one is ready.

A revision's decode workers are removed only after its prefill pods are gone. A prompt on an old prefill worker may
already have sent its first token, and then only a decode worker of the same model can continue it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from v4_operator.spec.size import NONE, Size


@dataclass(frozen=True)
class RevisionState:
    """The observed workers of one revision."""

    revision: str
    asked: Size = NONE  # workers that the operator last requested
    ready: Size = NONE
    pods: Size = NONE  # workers whose pods exist, including terminating ones
    probed: bool = False  # every router's probe went through prefill, transfer and decode of this revision
    settled: bool = False  # all its workers were ready at some time
    made: str = ""  # creation time; sorts chronologically
    paired: bool = False  # each pod holds a worker of each role, so both are removed together


@dataclass(frozen=True)
class Wish:
    """The requested state of the workers."""

    size: Size
    replace: bool = False  # strategy Replace instead of Surge
    startable: bool = True  # whether workers of the current revision may be created already
    stalled: bool = False  # whether the current revision has missed the progress deadline


def targets(wish: Wish, current: RevisionState, olds: Sequence[RevisionState]) -> dict[str, Size]:
    """Returns the size of every revision that should exist. All other revisions should be removed."""
    sizes = _serving(wish, current, olds)
    for old in olds:
        if _still_owes(old, sizes.get(old.revision, NONE)):
            taken = sum(size.decode for revision, size in sizes.items() if revision != old.revision)
            room = max(wish.size.decode - taken, 0) if wish.replace else old.asked.decode
            sizes[old.revision] = Size(0, min(old.asked.decode, room))
    return {revision: size for revision, size in sizes.items() if size != NONE or revision == current.revision}


def _still_owes(old: RevisionState, size: Size) -> bool:
    """Whether remaining prefill pods of an old revision may still need its decode workers, although `size` has none."""
    return size.decode == 0 and old.asked.decode > 0 and old.pods.prefill > 0 and not old.paired


def _serving(wish: Wish, current: RevisionState, olds: Sequence[RevisionState]) -> dict[str, Size]:
    """The size of every revision that takes part in serving."""
    old = best(olds)
    if old is None:
        return {current.revision: _within(wish, current, olds)} if wish.startable else {}
    if not wish.startable:
        return {old.revision: wish.size}
    if complete(wish.size, current):
        return {current.revision: wish.size}
    if wish.replace:
        return _replace(wish, current, old, olds)
    # The old revision does not grow unless the rollout has stalled: it would take the resources of the new one.
    return {
        current.revision: wish.size,
        old.revision: wish.size if wish.stalled else old.asked.lowest(wish.size),
    }


def complete(wanted: Size, current: RevisionState) -> bool:
    """Whether the current revision can serve all traffic."""
    return current.ready.covers(wanted) and (current.probed or not wanted.pairs)


def best(olds: Sequence[RevisionState]) -> RevisionState | None:
    """The old revision that serves with the most workers, or served before; None if there is none."""
    worth = [old for old in olds if old.ready.pairs or old.settled]
    by_time = sorted(worth, key=lambda old: old.made)
    return max(by_time, key=lambda old: (old.probed, old.ready.pairs, old.settled), default=None)


def outage(wish: Wish) -> bool:
    """Whether the old revision must be removed before a new one can start."""
    return wish.replace and wish.size.pairs <= 1


def _replace(wish: Wish, current: RevisionState, old: RevisionState, olds: Sequence[RevisionState]) -> dict[str, Size]:
    if outage(wish):
        return {current.revision: _within(wish, current, olds)}
    stage = _stage(wish.size, current)
    staying = old.asked.lowest(wish.size.less(_at_stage(wish.size, stage)))
    wanted = current.asked.highest(_at_stage(wish.size, stage))
    while stage < wish.size.pairs and wish.size.less(staying).covers(_at_stage(wish.size, stage + 1)):
        stage += 1
        wanted = current.asked.highest(_at_stage(wish.size, stage))
    room = wish.size.less(_held(olds).highest(staying))
    growing = wanted.lowest(room).highest(current.asked)
    return {current.revision: growing.lowest(wish.size.less(staying)), old.revision: staying}


def _within(wish: Wish, current: RevisionState, olds: Sequence[RevisionState]) -> Size:
    """The requested size; with Replace, less the workers of old revisions that still exist."""
    if not wish.replace:
        return wish.size
    return wish.size.less(_held(olds)).highest(current.asked).lowest(wish.size)


def _stage(size: Size, current: RevisionState) -> int:
    """The first stage that is not complete."""
    stages = range(1, size.pairs)
    return next((k for k in stages if not (current.probed and current.ready.covers(_at_stage(size, k)))), size.pairs)


def _at_stage(size: Size, stage: int) -> Size:
    """The workers of the current revision at a stage: stage / n of each role, rounded to the nearest integer."""
    n = size.pairs
    return Size(*((2 * stage * whole + n) // (2 * n) for whole in size))


def _held(olds: Sequence[RevisionState]) -> Size:
    """The workers of old revisions whose pods exist."""
    held = NONE
    for old in olds:
        held = held.plus(old.pods)
    return held
