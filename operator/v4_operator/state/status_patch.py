"""What to write into the status of a V4Deployment, and what to tell about it. Pure.

The plan makes the whole status. Only what the plan cannot know is added here: that it could not be made, or that
objects could not be written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from v4_core.kubernetes import Json
from v4_operator.errors import ApiError, KindMissing, NameTaken, OperatorError
from v4_operator.state.conditions import Condition, joined, written


@dataclass(frozen=True)
class Transition:
    """A condition that is not what it was."""

    kind: str  # Normal | Warning
    reason: str
    message: str


def merge_patch(old: Json, new: Json) -> dict[str, Any]:
    """What makes `new` of `old` by RFC 7386; empty where nothing but times of conditions differs."""
    if _timeless(old) == _timeless(new):
        return {}
    return _difference(old, new)


def _difference(old: Json, new: Json) -> dict[str, Any]:
    patch: dict[str, Any] = dict.fromkeys(key for key in old if key not in new)
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := _difference(before, value):
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch


def _timeless(status: Json) -> Json:
    conditions = [{**condition, "lastTransitionTime": ""} for condition in status.get("conditions") or ()]
    return {**status, "conditions": conditions}


def refused(old: Json, generation: int, reason: str, message: str, now: datetime) -> dict[str, Any]:
    """The status of a V4Deployment that cannot be planned; what was made before stays as it is."""
    states = {"Ready": False, "Progressing": False, "Degraded": True}
    conditions = [Condition(kind, holds, reason, message) for kind, holds in states.items()]
    stated = written(conditions, old.get("conditions") or (), generation, now)
    return {**old, "observedGeneration": generation, "conditions": stated}


def with_errors(
    status: Json, old: Json, errors: Sequence[OperatorError], generation: int, now: datetime, *, stuck: bool = False
) -> dict[str, Any]:
    """`status`, Degraded if an error among `errors` is one that stays until somebody acts.

    `stuck`: errors that should pass have not passed for so long that they are told of as well.
    """
    told = [text for error in errors if (text := _told(error, stuck))]
    if not told:
        return dict(status)
    reason = "NameTaken" if any(isinstance(error, NameTaken) for error in errors) else "ApplyFailed"
    before = _by_type(status.get("conditions") or ()).get("Degraded", {})
    known = [before["message"]] if before.get("status") == "True" else []
    degraded = Condition("Degraded", True, reason, joined([*told, *known]))
    others = [condition for condition in status.get("conditions", ()) if condition["type"] != "Degraded"]
    return {**status, "conditions": [*others, *written([degraded], old.get("conditions") or (), generation, now)]}


def _told(error: OperatorError, stuck: bool) -> str:
    """What status says of an error; empty while it may pass by itself."""
    if isinstance(error, NameTaken | KindMissing) or (isinstance(error, ApiError) and not error.passing):
        return str(error)
    return f"{error} (tried again for over a minute)" if stuck and isinstance(error, ApiError) else ""


def transitions(old: Json, new: Json) -> list[Transition]:
    """What an Event is worth: each condition whose status or reason changed, but no first "all is well"."""
    before = _by_type(old.get("conditions") or ())
    found = []
    for condition in new.get("conditions") or ():
        known = before.get(condition["type"], {})
        if (known.get("status"), known.get("reason")) == (condition["status"], condition["reason"]):
            continue
        if not known and condition["type"] == "Degraded" and condition["status"] == "False":
            continue  # nothing has happened yet
        kind = "Warning" if _is_bad(condition, known) else "Normal"
        text = f"{condition['type']} is {condition['status']}: {condition.get('message') or condition['reason']}"
        found.append(Transition(kind, condition["reason"], text))
    return found


def _is_bad(condition: Json, known: Json) -> bool:
    if condition["type"] == "Ready":
        return bool(condition["status"] != "True" and known.get("status") == "True")
    return bool(condition["type"] == "Degraded" and condition["status"] == "True")


def _by_type(conditions: Sequence[Json]) -> dict[str, Json]:
    return {condition["type"]: condition for condition in conditions}
