"""Remembers the last valid spec of a V4Deployment and the images that were chosen for it. Pure.

Both are stored in an immutable ConfigMap whose name contains a hash of its content. A new spec therefore creates a new
ConfigMap, and the operator deletes the old one. While the spec of a V4Deployment is invalid, the operator follows the
last valid one.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from v4_core.kubernetes import GROUP, Json
from v4_operator.manifests.names import child, metadata, short_digest
from v4_operator.manifests.settings import Settings
from v4_operator.observed.compare import controller
from v4_operator.spec.check import check
from v4_operator.spec.parse import SpecError, parse
from v4_operator.spec.v4deployment import V4Deployment

_PART = "spec"
_GENERATION_ANNOTATION = f"{GROUP}/generation"


@dataclass(frozen=True)
class Accepted:
    """The last valid spec and the images that were chosen for it."""

    spec: Json = field(default_factory=dict)  # unparsed; empty = no spec was valid yet
    worker_image: str = ""
    router_image: str = ""
    generation: int = 0  # metadata.generation of the V4Deployment when it last had this spec; 0 = unknown

    def instead_of(self, parent: Json, server_version: tuple[int, int]) -> V4Deployment | None:
        """Parses `parent` with this spec. Returns None if there is no such spec, or if it is not valid any more."""
        if not self.spec:
            return None
        try:
            former = parse({**parent, "spec": self.spec})
        except SpecError:
            return None
        return None if check(former, server_version) else former


def accepted_object(v4d: V4Deployment, settings: Settings, accepted: Accepted) -> dict[str, Any]:
    """The ConfigMap that stores `accepted`."""
    data = {
        "spec": json.dumps(accepted.spec, sort_keys=True),
        "workerImage": accepted.worker_image,
        "routerImage": accepted.router_image,
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(
            v4d,
            settings,
            child(v4d, _PART, short_digest(data)),
            annotations={_GENERATION_ANNOTATION: str(accepted.generation)},
        ),
        "immutable": True,
        "data": data,
    }


def last_accepted(name: str, uid: str, children: Iterable[Json]) -> Accepted:
    """The last valid spec of the V4Deployment with this name and uid, read from its children."""
    found = [_read(obj) for obj in children if _remembers(obj, name, uid)]
    return max(found, key=lambda accepted: accepted.generation, default=Accepted())


def _remembers(obj: Json, name: str, uid: str) -> bool:
    """Whether an object is such a ConfigMap and its content matches the hash in its name."""
    owner = controller(obj)
    if obj["kind"] != "ConfigMap" or owner is None or owner["uid"] != uid:
        return False
    return bool(obj["metadata"]["name"] == f"{name}-{_PART}-{short_digest(obj.get('data'))}")


def _read(obj: Json) -> Accepted:
    data = obj["data"]
    generation = (obj["metadata"].get("annotations") or {}).get(_GENERATION_ANNOTATION, "")
    number = int(generation) if generation.isdecimal() else 0
    return Accepted(json.loads(data["spec"]), data["workerImage"], data["routerImage"], number)
