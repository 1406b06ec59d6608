"""Computes the patch of a V4Deployment's status and the Events about its conditions. Pure.

The desired state already has the whole status. This module adds only what is unknown before the writes: that no desired
state could be computed, or that objects could not be written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from v4_core.kubernetes import Json
from v4_kube.errors import ApiError
from v4_operator.errors import Failure, KindMissing, NameTaken
from v4_operator.state.conditions import Condition, joined, written


@dataclass(frozen=True)
class Transition:
    """A condition whose status or reason changed."""

    kind: str  # Normal | Warning
    reason: str
    message: str


def merge_patch(old: Json, new: Json) -> dict[str, Any]:
    """The merge patch (RFC 7386) from `old` to `new`; empty if they differ only in the times of conditions."""
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
    """The status of a V4Deployment without a desired state. Its existing children are left unchanged."""
    states = {"Ready": False, "Progressing": False, "Degraded": True}
    conditions = [Condition(kind, holds, reason, message) for kind, holds in states.items()]
    stated = written(conditions, old.get("conditions") or (), generation, now)
    return {**old, "observedGeneration": generation, "conditions": stated}


def with_errors(
    status: Json, old: Json, errors: Sequence[Failure], generation: int, now: datetime, *, stuck: bool = False
) -> dict[str, Any]:
    """`status`, with Degraded true if one of `errors` does not go away without somebody's action.

    With `stuck`, errors that usually go away by themselves are reported too, because they have lasted too long.
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


def _told(error: Failure, stuck: bool) -> str:
    """The text about an error in the status; empty while the error may go away by itself."""
    if isinstance(error, NameTaken | KindMissing) or (isinstance(error, ApiError) and not error.passing):
        return str(error)
    return f"{error} (retried for over a minute)" if stuck and isinstance(error, ApiError) else ""


def transitions(old: Json, new: Json) -> list[Transition]:
    """The transitions that deserve an Event: conditions whose status or reason changed, except an initial
    Degraded=False."""
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
