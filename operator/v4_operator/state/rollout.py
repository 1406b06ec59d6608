"""How many workers of each revision there should be. Pure: the next stage follows from what is seen, not from memory.

All counts are pairs (prefill, decode) of workers. The current revision is the one that the spec asks for; others are
old. At most one old revision is kept, the one that serves best: it carries the traffic until the current one is ready
and probed, and a third revision thereby removes the middle one. An old revision that serves nothing and never did is
not kept.

Surge brings the current revision up to its whole size beside the old one.

Replace has room for as many workers as are asked for, and no more. With n = min(prefill, decode) >= 2 it goes in n
stages: at stage k the current revision has size(k) = (prefill k/n, decode k/n), rounded, and the old one at most the
rest; both then have a worker of each role at every stage before the last, and about the ratio of the whole. A stage is
done when its workers are ready and probed. New workers come only where old ones are gone for good, since a worker that
drains still holds its devices. With n <= 1 the only prefill or decode worker cannot be in both revisions: the old
one goes first, and nothing serves in between.

Whoever goes, its decode workers go last, once its prefill pods are gone: a prompt that an old prefill worker has begun
may have sent its first token, and then only a decode worker of the same model can go on with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from v4_operator.spec.size import NONE, Size


@dataclass(frozen=True)
class RevisionState:
    """Workers of one revision, as they are seen."""

    revision: str
    asked: Size = NONE  # that its Deployments are to have
    ready: Size = NONE
    pods: Size = NONE  # that exist, those being deleted too
    probed: bool = False  # every router had a token through prefill, transfer and decode of it
    settled: bool = False  # it was once complete
    made: str = ""  # when; sorts by time
    paired: bool = False  # each pod holds a worker of both roles, which go together


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    size: Size
    replace: bool = False  # strategy Replace instead of Surge
    startable: bool = True  # whether workers of the current revision may be made yet
    stalled: bool = False  # whether the current revision has missed its deadline


def targets(wish: Wish, current: RevisionState, olds: Sequence[RevisionState]) -> dict[str, Size]:
    """Size of every revision that should exist; others should not."""
    sizes = _serving(wish, current, olds)
    for old in olds:
        if _still_owes(old, sizes.get(old.revision, NONE)):
            taken = sum(size.decode for revision, size in sizes.items() if revision != old.revision)
            room = max(wish.size.decode - taken, 0) if wish.replace else old.asked.decode
            sizes[old.revision] = Size(0, min(old.asked.decode, room))
    return {revision: size for revision, size in sizes.items() if size != NONE or revision == current.revision}


def _still_owes(old: RevisionState, size: Size) -> bool:
    """Whether prefill pods of a revision that should be without decode workers may need one of them."""
    return size.decode == 0 and old.asked.decode > 0 and old.pods.prefill > 0 and not old.paired


def _serving(wish: Wish, current: RevisionState, olds: Sequence[RevisionState]) -> dict[str, Size]:
    """Size of every revision that has a part in serving."""
    old = best(olds)
    if old is None:
        return {current.revision: _within(wish, current, olds)} if wish.startable else {}
    if not wish.startable:
        return {old.revision: wish.size}
    if complete(wish.size, current):
        return {current.revision: wish.size}
    if wish.replace:
        return _replace(wish, current, old, olds)
    # An old revision does not grow in a roll that may still end well: it would take what the new one needs.
    return {
        current.revision: wish.size,
        old.revision: wish.size if wish.stalled else old.asked.lowest(wish.size),
    }


def complete(wanted: Size, current: RevisionState) -> bool:
    """Whether the current revision can carry everything."""
    return current.ready.covers(wanted) and (current.probed or not wanted.pairs)


def best(olds: Sequence[RevisionState]) -> RevisionState | None:
    """The old revision that serves most, or that did; None if there is none."""
    worth = [old for old in olds if old.ready.pairs or old.settled]
    by_time = sorted(worth, key=lambda old: old.made)
    return max(by_time, key=lambda old: (old.probed, old.ready.pairs, old.settled), default=None)


def outage(wish: Wish) -> bool:
    """Whether a new revision can take over only after the old one is gone."""
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
    """The whole size, or for Replace what old workers leave of it that are still ending."""
    if not wish.replace:
        return wish.size
    return wish.size.less(_held(olds)).highest(current.asked).lowest(wish.size)


def _stage(size: Size, current: RevisionState) -> int:
    """The first stage that is not done."""
    stages = range(1, size.pairs)
    return next((k for k in stages if not (current.probed and current.ready.covers(_at_stage(size, k)))), size.pairs)


def _at_stage(size: Size, stage: int) -> Size:
    """Workers of the current revision at a stage: the share stage / n of each role, to the nearest number."""
    n = size.pairs
    return Size(*((2 * stage * whole + n) // (2 * n) for whole in size))


def _held(olds: Sequence[RevisionState]) -> Size:
    """Workers of old revisions that exist."""
    held = NONE
    for old in olds:
        held = held.plus(old.pods)
    return held
