"""Whether an object must be written, and whose it is. Pure.

A live object holds more than was applied: defaults, status, fields of others. So `desired` is compared as a part of
it, by the same rules as server-side apply merges: mappings by their desired keys, lists whose items have keys by those
(a container that was injected is nobody's difference, wherever it stands), other lists element by element. Fields that
server-side apply replaces as a whole are compared as a whole. Quantities are compared by value, and what is empty is
as what is absent. What was once desired and is no longer shows in the hash that every write leaves in an annotation.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from v4_core.kubernetes import DEPLOYMENT_LABEL, GROUP, KIND, MANAGED_BY_LABEL, MANAGER, Json

APPLIED_ANNOTATION = f"{GROUP}/applied"  # name and hash of the desired object
CREATE_ONLY_ANNOTATION = f"{GROUP}/create-only"  # "true": made if absent; its content is never changed

_QUANTITIES = frozenset({"requests", "limits"})  # mappings whose values are quantities
_QUANTITY = frozenset({"sizeLimit", "divisor"})
# Lists that several managers may add to, by the keys that tell their items apart.
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
# Fields that server-side apply takes as one value, and to which the API server adds no defaults: compared as a whole.
_WHOLE = frozenset({"selector", "podSelector", "nodeSelector", "rules", "subjects", "ingress", "egress"})


def digest(value: Any) -> str:
    """Of JSON, whatever the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def stamped(desired: Json) -> dict[str, Any]:
    """`desired` as it is written: with its name and hash in an annotation."""
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED_ANNOTATION: _stamp(desired)}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def upkept(desired: Json) -> dict[str, Any]:
    """What is written to an object that exists: all of it, or only labels and owner where its content is left alone."""
    if not create_only(desired):
        return stamped(desired)
    metadata, identity = desired["metadata"], ("name", "namespace", "labels", "ownerReferences")
    whose = {key: metadata[key] for key in identity if key in metadata}
    return {"apiVersion": desired["apiVersion"], "kind": desired["kind"], "metadata": whose}


def needs_write(written: Json, live: Json) -> bool:
    """Whether `live` differs from an object that `stamped` or `upkept` returned."""
    return not contains(written, live)


def was_applied(desired: Json, live: Json) -> bool:
    """Whether the live object came from this very desired one; what others changed since is repaired anyway."""
    annotations = live["metadata"].get("annotations") or {}
    return bool(annotations.get(APPLIED_ANNOTATION) == _stamp(desired))


def _stamp(desired: Json) -> str:
    return f"{desired['metadata']['name']} {digest(desired)}"


def contains(desired: Any, live: Any, key: str = "", *, whole: bool = False) -> bool:
    """Whether everything in `desired` stands in `live`, and nothing else if `whole`; both stand at `key`."""
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
    """Items of a list with those of the same keys in `live`; None for an empty list, or one whose items have none."""
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
    """Whether the content of an existing object of this name is left as it is."""
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
    return _labelled(live, desired["metadata"]["labels"][DEPLOYMENT_LABEL])


def belongs(live: Json, name: str, uid: str) -> bool:
    """Whether `live` goes when the V4Deployment of this name and uid wants it no longer.

    It controls it, or nobody does. Of what nobody controls an annotation must say that an operator wrote it under this
    name: a copy that somebody made by hand, of a Secret for instance, has all the labels and annotations too.
    """
    other = controller(live)
    if other is not None:
        return bool(other["uid"] == uid)
    written, _, _ = (live["metadata"].get("annotations") or {}).get(APPLIED_ANNOTATION, "").partition(" ")
    return bool(written == live["metadata"]["name"]) and _labelled(live, name)


def is_leaving(desired: Json, live: Json) -> bool:
    """Whether `live` goes by itself: it is being deleted, or belonged to a former V4Deployment of the same name."""
    owner, other = controller(desired), controller(live)
    if live["metadata"].get("deletionTimestamp"):
        return True
    if owner is None or other is None or other["kind"] != KIND or other["name"] != owner["name"]:
        return False
    return bool(other["uid"] != owner["uid"])


def _labelled(live: Json, name: str) -> bool:
    """Whether its labels say that it was made for the V4Deployment of this name."""
    labels = live["metadata"].get("labels") or {}
    return bool(labels.get(MANAGED_BY_LABEL) == MANAGER and labels.get(DEPLOYMENT_LABEL) == name)


def controller(obj: Json) -> Json | None:
    """The owner reference of the controller."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)
