"""Conditions of a V4Deployment, as the API's users know them from other kinds. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from v4_core.kubernetes import Json

_MESSAGE_CHARACTERS = 600  # so that an Event, which takes 1024, can tell it whole


@dataclass(frozen=True)
class Condition:
    """One statement about a V4Deployment."""

    type: str
    holds: bool
    reason: str  # one word in CamelCase, for programs
    message: str  # for people: what is so, and what to do about it


def written(conditions: Sequence[Condition], before: Sequence[Json], generation: int, now: datetime) -> list[Json]:
    """As they stand in status; the time of transition changes with a condition's status and with nothing else."""
    known = {condition.get("type"): condition for condition in before}
    return [_written(condition, known.get(condition.type, {}), generation, now) for condition in conditions]


def joined(messages: Sequence[str]) -> str:
    """Several as one message that fits into a status: the longest are cut, so that none hides those behind it."""
    lines = [" ".join(message.split()) for message in messages]
    room, longest = _MESSAGE_CHARACTERS - len("; ") * (len(lines) - 1), 0
    for place, length in enumerate(sorted(map(len, lines))):
        longest = max(room // (len(lines) - place), 1)  # a fair share of what shorter ones leave
        room -= min(length, longest)
    return "; ".join(_shortened(line, longest) for line in lines)


def _shortened(text: str, characters: int = _MESSAGE_CHARACTERS) -> str:
    """A message on one line that is not longer."""
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
