"""Decides whether an object must be written, and which V4Deployment it belongs to. Pure.

A live object contains more than the operator applied: defaults, status, and fields of other managers. `desired` is
therefore compared as a subset, by the rules with which server-side apply merges:

- mappings by the desired keys;
- lists of keyed items by those keys, so that an injected container is no difference, wherever it stands;
- other lists element by element;
- fields that server-side apply replaces as a whole, as a whole;
- quantities by value; an empty value equals an absent one.

A field that is no longer desired is detected by the hash of the desired object, which every write stores in an
annotation.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from v4_core.kubernetes import DEPLOYMENT_LABEL, GROUP, KIND, MANAGED_BY_LABEL, MANAGER, Json

APPLIED_ANNOTATION = f"{GROUP}/applied"  # name and hash of the desired object
CREATE_ONLY_ANNOTATION = f"{GROUP}/create-only"  # "true": created if absent; its content is never updated

_QUANTITIES = frozenset({"requests", "limits"})  # mappings whose values are quantities
_QUANTITY = frozenset({"sizeLimit", "divisor"})
# Lists to which several managers may add items, with the keys that identify an item.
_KEYED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "containers": (("name",),),
    "env": (("name",),),
    "volumes": (("name",),),
    "volumeMounts": (("mountPath",),),
    "imagePullSecrets": (("name",),),
    "topologySpreadConstraints": (("topologyKey", "whenUnsatisfiable"),),
    "ports": (("containerPort", "protocol"), ("port", "protocol")),  # of a container, of a Service
    "ownerReferences": (("uid",),),
}
# Fields that server-side apply replaces as one value and to which the API server adds no defaults.
_WHOLE = frozenset({"selector", "podSelector", "nodeSelector", "rules", "subjects", "ingress", "egress"})


def digest(value: Any) -> str:
    """Hash of a JSON value, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def stamped(desired: Json) -> dict[str, Any]:
    """`desired` with its name and hash in an annotation, as it is written."""
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED_ANNOTATION: _stamp(desired)}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def upkept(desired: Json) -> dict[str, Any]:
    """The object to apply to an existing one: all of `desired`, or only labels and owner if it is create-only."""
    if not create_only(desired):
        return stamped(desired)
    metadata, identity = desired["metadata"], ("name", "namespace", "labels", "ownerReferences")
    whose = {key: metadata[key] for key in identity if key in metadata}
    return {"apiVersion": desired["apiVersion"], "kind": desired["kind"], "metadata": whose}


def needs_write(written: Json, live: Json) -> bool:
    """Whether `live` differs from an object that `stamped` or `upkept` returned."""
    return not contains(written, live)


def was_applied(desired: Json, live: Json) -> bool:
    """Whether `live` was last written from exactly this desired object. Later changes by others do not matter."""
    annotations = live["metadata"].get("annotations") or {}
    return bool(annotations.get(APPLIED_ANNOTATION) == _stamp(desired))


def _stamp(desired: Json) -> str:
    return f"{desired['metadata']['name']} {digest(desired)}"


def contains(desired: Any, live: Any, key: str = "", *, whole: bool = False) -> bool:
    """Whether `live` contains everything in `desired`, and nothing else if `whole`. `key` is the field of both."""
    whole = whole or key in _WHOLE
    if isinstance(desired, Mapping):
        if live and not isinstance(live, Mapping):
            return False
        there = live or {}
        inner = key if key in _QUANTITIES else ""
        more = whole and any(value and name not in desired for name, value in there.items())
        return not more and all(
            contains(value, there.get(name), inner or name, whole=whole) for name, value in desired.items()
        )
    if isinstance(desired, list | tuple):
        if not isinstance(live, list | tuple):
            return not desired and not live
        pairs = None if whole else _by_key(desired, live, key)
        if pairs is not None:
            return all(contains(item, there) for item, there in pairs)
        return len(desired) == len(live) and all(
            contains(item, there, whole=whole) for item, there in zip(desired, live, strict=True)
        )
    if key in _QUANTITIES or key in _QUANTITY:
        return _same_quantity(desired, live)
    return desired == live or (not desired and not live)


def _by_key(desired: Sequence[Any], live: Sequence[Any], key: str) -> list[tuple[Any, Any]] | None:
    """Pairs the items of two lists by their keys. Returns None if the list is empty or its items have no such keys."""
    for names in _KEYED.get(key, ()):
        if desired and all(isinstance(item, Mapping) and names[0] in item for item in [*desired, *live]):
            there = {tuple(item.get(name) for name in names): item for item in live}
            return [(item, there.get(tuple(item.get(name) for name in names))) for item in desired]
    return None


def _same_quantity(desired: Any, live: Any) -> bool:
    if desired == live:
        return True
    try:
        return bool(parse_quantity(desired) == parse_quantity(live))
    except ValueError:
        return False


def create_only(desired: Json) -> bool:
    """Whether an existing object of this name keeps its content."""
    return bool(desired["metadata"].get("annotations", {}).get(CREATE_ONLY_ANNOTATION) == "true")


def is_ours(desired: Json, live: Json) -> bool:
    """Whether the operator created `live` for the same V4Deployment, so that it may be overwritten with `desired`.

    The controller reference decides; without one, the labels do. An object that lost only its labels gets them back. A
    desired object without an owner, such as a model's claim, is shared and may always be written.
    """
    owner, other = controller(desired), controller(live)
    if owner is None:
        return True
    if other is not None:
        return bool(other["uid"] == owner["uid"])
    return _labelled(live, desired["metadata"]["labels"][DEPLOYMENT_LABEL])


def belongs(live: Json, name: str, uid: str) -> bool:
    """Whether `live` may be deleted once the V4Deployment with this name and uid no longer needs it.

    The V4Deployment must be its controller, or it has no controller. In the second case the annotation of the last
    write must contain the object's own name: a copy that a user made, for instance of a Secret, has the labels and
    annotations of the original.
    """
    other = controller(live)
    if other is not None:
        return bool(other["uid"] == uid)
    written, _, _ = (live["metadata"].get("annotations") or {}).get(APPLIED_ANNOTATION, "").partition(" ")
    return bool(written == live["metadata"]["name"]) and _labelled(live, name)


def is_leaving(desired: Json, live: Json) -> bool:
    """Whether `live` will disappear: it is being deleted, or its owner was a former V4Deployment of the same name."""
    owner, other = controller(desired), controller(live)
    if live["metadata"].get("deletionTimestamp"):
        return True
    if owner is None or other is None or other["kind"] != KIND or other["name"] != owner["name"]:
        return False
    return bool(other["uid"] != owner["uid"])


def _labelled(live: Json, name: str) -> bool:
    """Whether the labels name the operator and the V4Deployment of this name."""
    labels = live["metadata"].get("labels") or {}
    return bool(labels.get(MANAGED_BY_LABEL) == MANAGER and labels.get(DEPLOYMENT_LABEL) == name)


def controller(obj: Json) -> Json | None:
    """The owner reference of the controller; None if there is none."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)
