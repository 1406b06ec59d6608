"""Conditions in the status of a V4Deployment, by the conventions of the Kubernetes API. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from v4_core.kubernetes import Json

_MESSAGE_CHARACTERS = 600  # an Event, whose message has at most 1024 characters, can then quote the whole message


@dataclass(frozen=True)
class Condition:
    """One condition."""

    type: str
    holds: bool
    reason: str  # one word in CamelCase, for programs
    message: str  # for users: what happened and what to do


def written(conditions: Sequence[Condition], before: Sequence[Json], generation: int, now: datetime) -> list[Json]:
    """Conditions as they are written to the status. `lastTransitionTime` changes only with a condition's status."""
    known = {condition.get("type"): condition for condition in before}
    return [_written(condition, known.get(condition.type, {}), generation, now) for condition in conditions]


def joined(messages: Sequence[str]) -> str:
    """Joins messages into one of at most 600 characters. The longest are cut, so that all of them stay visible."""
    lines = [" ".join(message.split()) for message in messages]
    room, longest = _MESSAGE_CHARACTERS - len("; ") * (len(lines) - 1), 0
    for place, length in enumerate(sorted(map(len, lines))):
        longest = max(room // (len(lines) - place), 1)  # an equal share of the room that shorter messages leave
        room -= min(length, longest)
    return "; ".join(_shortened(line, longest) for line in lines)


def _shortened(text: str, characters: int = _MESSAGE_CHARACTERS) -> str:
    """The text on one line, cut to at most `characters` characters."""
    line = " ".join(text.split())
    return line if len(line) <= characters else f"{line[: characters - 1]}…"


def _written(condition: Condition, before: Json, generation: int, now: datetime) -> dict[str, Any]:
    status = "True" if condition.holds else "False"
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": condition.type,
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": since or now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "reason": condition.reason,
        "message": _shortened(condition.message),
    }
