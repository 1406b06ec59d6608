"""The state machine of a group of choices: legs, attempts, retries, migration. Pure: no I/O, no clock, no fleet.

`advance` takes an event and returns actions. It changes the group in place: nothing else writes to groups, and a copy
for every token would cost more than the transition itself.

The choices of a prompt run together until a decode worker is lost after tokens were emitted; then each unfinished
choice continues alone, as a new request that carries its tokens so far.
"""

from typing import Final

from v4_core.blocks import BLOCK_TOKENS
from v4_core.v1 import worker_pb2 as pb
from v4_router import events
from v4_router.actions import (
    Action,
    CorrectPrefix,
    CountRetry,
    DropLeg,
    Fail,
    FindPartner,
    HoldPlace,
    LegBegan,
    Place,
    RecordFailure,
    RecordTransfer,
    SetTimer,
    StartLeg,
    Timer,
    WaitForRoom,
)
from v4_router.choice_group import ChoiceGroup, Queue, RemoteLeg
from v4_router.errors import InternalError, Unavailable, of_reason
from v4_router.group_ends import (
    Actions,
    GivenUp,
    count_try,
    give_up,
    leave,
    leave_if_finished,
    leave_queue,
    place,
    restart,
)
from v4_router.group_tokens import on_tokens
from v4_router.placement import RETRY

# Pauses while no worker can take a group of a prompt that has emitted tokens: the first, the longest, their sum.
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
PATIENCE_SECONDS = 60.0
LAST_TOKENS_SECONDS: Final = 0.2
_FINAL = (pb.INVALID, pb.DEADLINE)  # reasons of failures that no other worker would change


def advance(group: ChoiceGroup, event: events.Event) -> list[Action]:
    """Changes the group by one event. Returns the actions to perform, in order; none once the group is over."""
    actions: list[Action] = []
    if group.over:
        return actions
    try:
        for action in _transition(group, event):
            actions.append(action)
    except GivenUp as end:
        actions += [*leave(group), Fail(end.error)]
    return actions


def _transition(group: ChoiceGroup, event: events.Event) -> Actions:
    match event:
        case events.Tokens() | events.Started() | events.Adopted() | events.Failed():
            if event.leg in (group.decode, group.prefill):  # else the leg was dropped before
                return _from_leg(group, event)
        case events.Placed() | events.NotPlaced() | events.PartnerFound() | events.NoPartner():
            return _answered(group, event)
        case events.RoomGranted() | events.NoRoomLeft():
            if group.queue is Queue.WAITING:
                return _called(group, event)
        case events.Begin():
            return iter([place(group)])
        case events.TimerFired():
            return _timer_fired(group, event)
        case events.ChoiceFinished():
            group.prompt.choices[event.choice].finished = True
            return leave_if_finished(group)
        case events.Closed():
            return leave(group)
    return iter(())


def _from_leg(group: ChoiceGroup, event: events.LegEvent) -> Actions:
    match event:
        case events.Tokens():
            return on_tokens(group, event.leg, event.tokens)
        case events.Started():
            return _started(group, event)
        case events.Adopted():
            return _adopted(group, event)
        case events.Failed():
            return _failed(group, event)


def _answered(group: ChoiceGroup, event: events.Answer) -> Actions:
    match event:
        case events.Placed():
            return _placed(group, event)
        case events.NotPlaced():
            return _not_placed(group)
        case events.PartnerFound():
            return _pull(group, event.worker)
        case events.NoPartner():
            return _without_partner(group)


# Placing and starting


def _placed(group: ChoiceGroup, event: events.Placed) -> Actions:
    """Starts a new attempt from the prompt on."""
    placement, prompt = event.placement, group.prompt
    group.attempt += 1
    group.adopted = False
    group.lease = 0
    prompt.reason = RETRY if group.tries or prompt.splits else placement.reason
    if placement.prefill is None:
        prompt.prefill, prompt.decode = "-", placement.decode
        group.decode = RemoteLeg(group.request, group.attempt, pb.WHOLE, placement.decode)
        yield StartLeg(group.decode, group.tokens, placement=placement)
        return
    prompt.prefill = placement.prefill  # the decode worker is chosen when there is a cache to pull
    group.cached_guess = event.cached_guess
    group.prefill = RemoteLeg(group.request, group.attempt, pb.PREFILL, placement.prefill)
    yield StartLeg(group.prefill, max(0, group.tokens - event.cached_guess), placement=placement)


def _not_placed(group: ChoiceGroup) -> Actions:
    """Places the group on a worker that failed before; else pauses, or gives up if nothing was emitted yet."""
    if group.failed:
        group.failed.clear()
        yield Place(frozenset(group.refused))
        return
    if not group.prompt.emitted or group.paused_seconds >= PATIENCE_SECONDS:
        raise give_up(group)
    pause = min(max(group.paused_seconds, PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
    group.paused_seconds += pause
    group.refused.clear()
    yield SetTimer(Timer.PAUSE, pause)


def _started(group: ChoiceGroup, event: events.Started) -> Actions:
    if event.leg.phase == pb.DECODE:
        return
    yield LegBegan(event.leg, event.cached_tokens)
    if not group.prompt.emitted:
        group.prompt.cached_tokens = event.cached_tokens
    if event.leg.phase == pb.WHOLE:
        return
    if event.cached_tokens < group.cached_guess:
        yield CorrectPrefix(event.leg, event.cached_tokens // BLOCK_TOKENS)
    group.lease = event.lease
    if group.prompt.request.max_tokens - group.base > 1:  # else prefill's own token is the last one
        yield from _offer(group)


def _offer(group: ChoiceGroup) -> Actions:
    """Chooses a decode worker for the cache.

    It is chosen now, not when the prompt was placed: of prompts placed together, each sees where the others went.
    """
    if group.prefill is not None and group.decode is None and group.queue is not Queue.WAITING:
        yield FindPartner(group.prefill, frozenset(group.refused | group.failed))


def _without_partner(group: ChoiceGroup) -> Actions:
    count_try(group)
    yield from restart(group)


def _pull(group: ChoiceGroup, worker: str) -> Actions:
    if group.prefill is None or group.decode is not None:
        raise GivenUp(InternalError("a cache without a prefill worker was to be pulled"))
    group.prompt.prefill, group.prompt.decode = group.prefill.worker, worker
    group.decode = RemoteLeg(group.request, group.attempt, pb.DECODE, worker)
    yield StartLeg(group.decode, 0, source=group.prefill, lease=group.lease)


def _adopted(group: ChoiceGroup, event: events.Adopted) -> Actions:
    group.adopted = True
    group.prompt.adopted = event.adopted
    yield from leave_queue(group)
    yield RecordTransfer(event.leg, event.adopted)


def _timer_fired(group: ChoiceGroup, event: events.TimerFired) -> Actions:
    if event.timer is Timer.PAUSE:
        yield place(group)
    elif event.leg == group.prefill:
        yield from _offer(group)


def _called(group: ChoiceGroup, event: events.RoomGranted | events.NoRoomLeft) -> Actions:
    """The group's turn in the queue came, or will never come; it keeps its place until the cache is adopted."""
    group.queue = Queue.CALLED
    if isinstance(event, events.RoomGranted):
        yield from _pull(group, event.worker)
    else:
        yield HoldPlace()
        yield from _offer(group)


# Failures


def _failed(group: ChoiceGroup, event: events.Failed) -> Actions:
    leg, reason = event.leg, event.reason
    yield DropLeg(leg, None)
    yield RecordFailure(leg, reason, event.message)
    if leg == group.prefill:
        group.prefill = None
    else:
        group.decode = None
    if reason in _FINAL:
        raise GivenUp(of_reason(reason, event.message))
    if leg.phase == pb.PREFILL and group.adopted and _have_first_tokens(group):
        return  # decode has everything that prefill had to give
    # The lease expired while the cache waited for room: no worker is to blame.
    expired = leg.phase == pb.PREFILL and reason == pb.TRANSFER and group.queue in (Queue.WAITING, Queue.CALLED)
    if reason == pb.TRANSFER and not (expired or event.recompute):
        raise GivenUp(of_reason(reason, event.message))
    cache = None if group.adopted else group.prefill  # can still be pulled
    if cache is not None:
        group.attempt += 1  # the next pull of the same cache is a new attempt
        if leg.phase == pb.DECODE and reason == pb.OVERLOADED:
            group.queue = Queue.WAITING
            yield WaitForRoom(cache)
            return
    if not expired:
        yield from _blame(group, event)
    yield from _try_again(group, reason, cache)


def _try_again(group: ChoiceGroup, reason: int, cache: RemoteLeg | None) -> Actions:
    if cache is None:
        yield from restart(group)
    elif reason == pb.TRANSFER:
        yield SetTimer(Timer.LAST_TOKENS, LAST_TOKENS_SECONDS, cache)
    else:
        yield from _offer(group)


def _have_first_tokens(group: ChoiceGroup) -> bool:
    return all(len(group.prompt.choices[c].ids) > group.base for c in group.choices)


def _blame(group: ChoiceGroup, event: events.Failed) -> Actions:
    prompt, reason = group.prompt, event.reason
    prompt.retries += 1
    yield CountRetry(event.leg, reason)
    lost = reason == events.LOST
    prompt.last_error = Unavailable(event.message) if lost else of_reason(reason, event.message)
    if reason == pb.OVERLOADED:
        prompt.overloaded = prompt.last_error
    hard = reason in (pb.OVERLOADED, pb.DRAINING, pb.INTERNAL)
    (group.refused if hard else group.failed).add(event.leg.worker)
    count_try(group)
