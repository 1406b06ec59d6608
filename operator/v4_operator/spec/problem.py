"""A problem is a reason why a V4Deployment cannot run as specified. The reason strings are part of the API: programs
wait for them in conditions.
"""

from dataclasses import dataclass

INVALID_NAME = "InvalidName"  # the name is too long or malformed for the names of children
INVALID_SPEC = "InvalidSpec"  # fields contradict each other or the model
RESERVED = "Reserved"  # the operator itself sets this value
DOES_NOT_FIT = "DoesNotFit"  # memory cannot hold the weights and one sequence
SERVER_LACKS = "ServerLacks"  # the API server is too old
ENGINE_LACKS = "EngineLacks"  # the engine does not support it yet


@dataclass(frozen=True)
class Problem:
    """One reason why a V4Deployment cannot run as specified."""

    reason: str
    message: str  # for users: what is wrong and how to fix it
    field: str  # path within spec, or metadata.name
