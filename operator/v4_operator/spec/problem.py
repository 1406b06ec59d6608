"""Why a V4Deployment cannot run as asked. Reasons are words for conditions: programs may wait for them."""

from dataclasses import dataclass

INVALID_NAME = "InvalidName"  # names of children cannot be made of it
INVALID_SPEC = "InvalidSpec"  # fields contradict each other, or the model
RESERVED = "Reserved"  # something that the operator itself sets
DOES_NOT_FIT = "DoesNotFit"  # memory cannot hold weights plus one sequence
SERVER_LACKS = "ServerLacks"  # the API server is too old
ENGINE_LACKS = "EngineLacks"  # the engine cannot do it yet


@dataclass(frozen=True)
class Problem:
    """One of them."""

    reason: str
    message: str  # for people: what is wrong, and what to do
    field: str  # path within spec, or metadata.name
