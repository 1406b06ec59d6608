"""Whether an object must be written, and whose it is. Pure.

A live object holds more than was applied: defaults, status, fields of others. So `desired` is compared as a part of
it: mappings by their desired keys, lists element by element, quantities by value, and what is empty as what is
absent. What was once desired and is no longer shows in the hash that every write leaves in an annotation.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from v4_core.kubernetes import DEPLOYMENT_LABEL, GROUP, KIND, MANAGED_BY_LABEL, MANAGER
from v4_operator.spec import Json

APPLIED_ANNOTATION = f"{GROUP}/applied"  # hash of the desired object
CREATE_ONLY_ANNOTATION = f"{GROUP}/create-only"  # "true": made if absent, never changed

_QUANTITIES = frozenset({"requests", "limits"})  # mappings whose values are quantities
_QUANTITY = frozenset({"sizeLimit", "divisor"})


def digest(value: Any) -> str:
    """Of JSON, whatever the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def stamped(desired: Json) -> dict[str, Any]:
    """`desired` as it is written: with its hash in an annotation."""
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED_ANNOTATION: digest(desired)}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def needs_write(written: Json, live: Json) -> bool:
    """Whether `live` differs from an object that `stamped` returned."""
    return not contains(written, live)


def was_applied(desired: Json, live: Json) -> bool:
    """Whether the live object came from this very desired one; what others changed since is repaired anyway."""
    annotations = live["metadata"].get("annotations") or {}
    return bool(annotations.get(APPLIED_ANNOTATION) == digest(desired))


def contains(desired: Any, live: Any, key: str = "") -> bool:
    """Whether everything in `desired` stands in `live`; `key` is the one that both stand at."""
    if isinstance(desired, Mapping):
        if live and not isinstance(live, Mapping):
            return False
        there = live or {}
        inner = key if key in _QUANTITIES else ""
        return all(contains(value, there.get(name), inner or name) for name, value in desired.items())
    if isinstance(desired, list | tuple):
        if not isinstance(live, list | tuple):
            return not desired and not live
        return len(desired) == len(live) and all(map(contains, desired, live))
    if key in _QUANTITIES or key in _QUANTITY:
        return _same_quantity(desired, live)
    return desired == live or (not desired and not live)


def _same_quantity(desired: Any, live: Any) -> bool:
    if desired == live:
        return True
    try:
        return bool(parse_quantity(desired) == parse_quantity(live))
    except ValueError:
        return False


def create_only(desired: Json) -> bool:
    """Whether an existing object of this name is left as it is."""
    return bool(desired["metadata"].get("annotations", {}).get(CREATE_ONLY_ANNOTATION) == "true")


def is_ours(desired: Json, live: Json) -> bool:
    """Whether `live` may be written as `desired`: made by an operator, for the same V4Deployment.

    Its controller says so, or where it has none its labels do; an object that lost only labels gets them back. What
    has no owner, such as a model's claim, belongs to nobody and is shared.
    """
    owner, other = controller(desired), controller(live)
    if owner is None:
        return True
    if other is not None:
        return bool(other["uid"] == owner["uid"])
    labels = live["metadata"].get("labels") or {}
    expected = desired["metadata"]["labels"][DEPLOYMENT_LABEL]
    return labels.get(MANAGED_BY_LABEL) == MANAGER and labels.get(DEPLOYMENT_LABEL) == expected


def is_leaving(desired: Json, live: Json) -> bool:
    """Whether `live` goes by itself: it is being deleted, or belonged to a former V4Deployment of the same name."""
    owner, other = controller(desired), controller(live)
    if live["metadata"].get("deletionTimestamp"):
        return True
    if owner is None or other is None or other["kind"] != KIND or other["name"] != owner["name"]:
        return False
    return bool(other["uid"] != owner["uid"])


def controller(obj: Json) -> Json | None:
    """The owner reference of the controller."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)
