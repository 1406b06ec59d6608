"""What can happen to a group of choices: the events that `advance` takes.

The deadline and the client's disconnect end every group of a request in the same way, as Closed.
"""

from dataclasses import dataclass
from typing import Final

from v4_core.v1 import worker_pb2 as pb
from v4_router.actions import Timer
from v4_router.choice_group import RemoteLeg
from v4_router.placement import Placement

LOST: Final = -1  # beside pb.Reason: the worker's stream ended


@dataclass(frozen=True, slots=True)
class Begin:
    """The group is new."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The answer to Place: where to run."""

    placement: Placement
    cached_guess: int = 0  # prompt tokens that the prefill worker is believed to have cached


@dataclass(frozen=True, slots=True)
class NotPlaced:
    """The answer to Place if no worker is left."""


@dataclass(frozen=True, slots=True)
class PartnerFound:
    """The answer to FindPartner: the decode worker that is to pull the cache."""

    worker: str


@dataclass(frozen=True, slots=True)
class NoPartner:
    """The answer to FindPartner if no decode worker may pull the cache."""


@dataclass(frozen=True, slots=True)
class Started:
    """A worker admitted a leg and holds its memory."""

    leg: RemoteLeg
    cached_tokens: int
    lease: int = 0


@dataclass(slots=True)  # not frozen: one is made for every message with tokens, and frozen ones take twice the time
class Tokens:
    """A leg sent tokens of a choice."""

    leg: RemoteLeg
    tokens: pb.Tokens


@dataclass(frozen=True, slots=True)
class Adopted:
    """A decode leg has the whole cache."""

    leg: RemoteLeg
    adopted: pb.Adopted


@dataclass(frozen=True, slots=True)
class Failed:
    """A leg ended without finishing."""

    leg: RemoteLeg
    reason: int  # pb.Reason or LOST
    message: str
    recompute: bool = True  # whether the policy allows computing the prompt again after a failed transfer


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of SetTimer is over."""

    timer: Timer
    leg: RemoteLeg | None = None  # as in SetTimer


@dataclass(frozen=True, slots=True)
class RoomGranted:
    """It is the group's turn in the queue, and this decode worker has room."""

    worker: str


@dataclass(frozen=True, slots=True)
class NoRoomLeft:
    """No decode worker is left that could ever have room for the waiting cache."""


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """The reader needs no more of a choice."""

    choice: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The request is over, whatever the reason."""


Answer = Placed | NotPlaced | PartnerFound | NoPartner
LegEvent = Started | Tokens | Adopted | Failed
Event = LegEvent | Answer | Begin | TimerFired | RoomGranted | NoRoomLeft | ChoiceFinished | Closed


def leg_event(leg: RemoteLeg, message: pb.Event | None, role: str, *, recompute: bool = True) -> LegEvent | None:
    """Returns the event for a worker's message, where None is the loss of its stream.

    Returns None for a message of an unknown kind. `recompute`: as in Failed.
    """
    if message is None:
        return Failed(leg, LOST, f"{role} worker {leg.worker} was lost", recompute)
    match message.WhichOneof("event"):
        case "tokens":
            return Tokens(leg, message.tokens)
        case "started":
            return Started(leg, message.started.cached_tokens, message.started.lease)
        case "adopted":
            return Adopted(leg, message.adopted)
        case "failed":
            return Failed(leg, message.failed.reason, message.failed.message, recompute)
    return None
