"""Transitions that end a group of choices or its attempt; part of the state machine in `advance.py`."""

from collections.abc import Iterator
from typing import Final

from v4_core.v1 import worker_pb2 as pb
from v4_router.actions import Action, CountRecomputation, Done, DropLeg, HoldPlace, LeaveQueue, Place, Split
from v4_router.choice_group import ChoiceGroup, Queue
from v4_router.errors import RouterError

MAX_TRIES: Final = 6  # failures of one group in a row without a new token

Actions = Iterator[Action]


class GivenUp(Exception):
    """Ends the request with this error, or because no worker is left."""

    def __init__(self, error: RouterError | None) -> None:
        super().__init__(error)
        self.error = error


def give_up(group: ChoiceGroup) -> GivenUp:
    """The end after failures: a full worker's refusal says most to the client, else the latest failure."""
    return GivenUp(group.prompt.overloaded or group.prompt.last_error)


def count_try(group: ChoiceGroup) -> None:
    """Bounds the tries: every way back to a placement passes here or through a pause. Raises GivenUp."""
    group.tries += 1
    if group.tries > MAX_TRIES:
        raise give_up(group)


def place(group: ChoiceGroup) -> Action:
    """Asks for the workers of a new attempt."""
    return Place(frozenset(group.refused | group.failed))


def restart(group: ChoiceGroup) -> Actions:
    """Computes again from the prompt, and from each choice's tokens so far if it has any."""
    yield from _release(group)
    if group.queue is not Queue.OUT:
        group.queue = Queue.HELD
        yield HoldPlace()
    choices = group.prompt.choices
    for c in group.choices:
        choices[c].early.clear()
    yield CountRecomputation()
    if all(len(choices[c].ids) == group.base for c in group.choices):
        yield place(group)
        return
    for c in group.choices:
        if not choices[c].finished:
            yield from split(group, c)
    yield from leave(group)


def split(group: ChoiceGroup, choice: int) -> Actions:
    """Lets one choice continue alone."""
    group.prompt.splits += 1
    yield Split(group.only(choice))


def leave_if_finished(group: ChoiceGroup) -> Actions:
    """Ends the group if all of its choices are finished."""
    if all(group.prompt.choices[c].finished for c in group.choices):
        yield from leave(group)


def leave(group: ChoiceGroup) -> Actions:
    """Ends the group."""
    yield from _release(group)
    yield from leave_queue(group)
    group.over = True
    yield Done()


def leave_queue(group: ChoiceGroup) -> Actions:
    """Gives up the group's place in the queue for room, if it has one."""
    if group.queue is not Queue.OUT:
        group.queue = Queue.OUT
        yield LeaveQueue()


def _release(group: ChoiceGroup) -> Actions:
    """Drops both legs, and cancels them unless nothing of them is left on the worker."""
    prefill, decode = group.prefill, group.decode
    group.prefill = group.decode = None
    if prefill is not None:
        yield DropLeg(prefill, None if group.adopted else group.attempt)
    if decode is not None:
        ended = all(group.prompt.choices[c].ended for c in group.choices)
        complete = ended and (group.adopted or decode.phase == pb.WHOLE)
        yield DropLeg(decode, None if complete else group.attempt)
