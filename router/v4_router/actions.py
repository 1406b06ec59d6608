"""What a group of choices wants done: the actions that `advance` returns, to be performed in their order.

They are performed by flow.py for requests and by prober.py for probes.

Place and FindPartner are questions. Each is the last action of its list, and is answered by an event before any other
event reaches the group.
"""

from dataclasses import dataclass
from enum import Enum

from v4_core.v1 import worker_pb2 as pb
from v4_router.choice_group import ChoiceGroup, RemoteLeg
from v4_router.errors import RouterError
from v4_router.placement import Placement


class Timer(Enum):
    """What a group waits for by the clock."""

    PAUSE = "pause"  # before the group is placed again
    LAST_TOKENS = "last tokens"  # for prefill's tokens to arrive, after its lease ended during a pull


@dataclass(frozen=True, slots=True)
class Place:
    """Choose the workers for a new attempt; answered by Placed or NotPlaced."""

    avoid: frozenset[str]  # addresses


@dataclass(frozen=True, slots=True)
class FindPartner:
    """Choose a decode worker that pulls the cache of this prefill leg; answered by PartnerFound or NoPartner."""

    prefill: RemoteLeg
    avoid: frozenset[str]


@dataclass(frozen=True, slots=True)
class StartLeg:
    """Send a leg to its worker.

    A PREFILL leg also adds the prompt to what the worker is believed to have cached.
    """

    leg: RemoteLeg
    uncached_tokens: int  # prompt tokens that the worker is expected to compute
    source: RemoteLeg | None = None  # the prefill leg whose cache a DECODE leg pulls
    lease: int = 0
    placement: Placement | None = None  # None for a DECODE leg, whose worker is chosen apart


@dataclass(frozen=True, slots=True)
class DropLeg:
    """End a leg for the router. `cancel` is the attempt for a Cancel to the worker; None = nothing runs there."""

    leg: RemoteLeg
    cancel: int | None


@dataclass(frozen=True, slots=True)
class LegBegan:
    """Record that a worker began with the prompt, and how many of its tokens were cached there."""

    leg: RemoteLeg
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class CorrectPrefix:
    """Record that the worker had only so many leading blocks of the prompt cached."""

    leg: RemoteLeg
    blocks: int


@dataclass(slots=True)  # not frozen: one is made for every message with tokens, and frozen ones take twice the time
class EmitTokens:
    """Send new tokens of one choice to the reader."""

    leg: RemoteLeg
    choice: int
    ids: list[int]
    logprobs: list[pb.TokenLogprobs]
    finish: str | None = None  # stop | length


@dataclass(frozen=True, slots=True)
class RecordTransfer:
    """Count a cache that was moved to a decode worker."""

    leg: RemoteLeg
    adopted: pb.Adopted


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """Mark in the trace that a leg failed."""

    leg: RemoteLeg
    reason: int
    message: str


@dataclass(frozen=True, slots=True)
class CountRetry:
    """Count a failure after which the group is placed again."""

    leg: RemoteLeg
    reason: int


@dataclass(frozen=True, slots=True)
class CountRecomputation:
    """Count a prompt that is computed again."""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send TimerFired after some time."""

    timer: Timer
    seconds: float
    leg: RemoteLeg | None = None


@dataclass(frozen=True, slots=True)
class WaitForRoom:
    """Enter the queue for room on a decode worker, or return to the place that the group kept there."""

    prefill: RemoteLeg  # whose cache waits


@dataclass(frozen=True, slots=True)
class HoldPlace:
    """Keep the place in the queue, but wait for no room now."""


@dataclass(frozen=True, slots=True)
class LeaveQueue:
    """Give up the place in the queue."""


@dataclass(frozen=True, slots=True)
class Split:
    """Begin a new group that continues one choice of this group, with this group's place in the queue."""

    group: ChoiceGroup


@dataclass(frozen=True, slots=True)
class Done:
    """The group is over; no further event reaches it."""


@dataclass(frozen=True, slots=True)
class Fail:
    """End the whole request. Without an error, the cause is that no worker is left."""

    error: RouterError | None


Record = (
    LegBegan | CorrectPrefix | RecordTransfer | RecordFailure | CountRetry | CountRecomputation
)  # changes nothing that runs
Action = (
    Record
    | Place
    | FindPartner
    | StartLeg
    | DropLeg
    | EmitTokens
    | SetTimer
    | WaitForRoom
    | HoldPlace
    | LeaveQueue
    | Split
    | Done
    | Fail
)
