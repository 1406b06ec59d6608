"""Deployments as they are written, and what the operator remembers of one: what it wrote last. Pure.

A live Deployment is what others made of it as well: it may have another image, another size, a container that was
injected. What the operator chose stands in an annotation of its own, so that it goes on from that and heals the rest.
"""

import json
from typing import Any

from v4_core.kubernetes import GROUP, REVISION_LABEL, ROLE_LABEL, Json
from v4_operator.manifests.names import metadata
from v4_operator.manifests.settings import Settings
from v4_operator.observed.objects import label, replicas
from v4_operator.spec.v4deployment import V4Deployment

DESIRED_ANNOTATION = f"{GROUP}/desired"  # JSON of the spec that was desired last


def deployment(
    v4d: V4Deployment, settings: Settings, name: str, role: str, spec: Json, revision: str = ""
) -> dict[str, Any]:
    """A Deployment that remembers its spec."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(v4d, settings, name, role, revision, {DESIRED_ANNOTATION: text}),
        "spec": spec,
    }


def kept(v4d: V4Deployment, settings: Settings, live: Json, size: int) -> dict[str, Any]:
    """A live Deployment as the operator wrote it last, but for its size. Its pods are not restarted."""
    spec = {**_remembered(live), "replicas": size}
    name, role, revision = live["metadata"]["name"], label(live, ROLE_LABEL), label(live, REVISION_LABEL)
    return deployment(v4d, settings, name, role, spec, revision)


def chosen_image(live: Json, container: str) -> str:
    """The image that the operator chose for a container; empty if there is no container of this name."""
    containers = _remembered(live)["template"]["spec"]["containers"]
    return next((str(each.get("image", "")) for each in containers if each["name"] == container), "")


def asked_replicas(live: Json) -> int:
    """Pods that the operator last asked for."""
    return replicas({"spec": _remembered(live)})


def remembers(live: Json) -> bool:
    """Whether it says what the operator wrote last: it does not if an operator without this memory made it, or if
    somebody replaced its annotations."""
    return _noted(live) is not None


def _remembered(live: Json) -> Json:
    """The spec that was desired last; as it is, of a Deployment that does not say it."""
    if (noted := _noted(live)) is not None:
        return noted
    template = live["spec"]["template"]
    present = {key: value for key, value in template.get("metadata", {}).items() if value is not None}
    return {**live["spec"], "template": {**template, "metadata": present}}


def _noted(live: Json) -> Json | None:
    text = (live["metadata"].get("annotations") or {}).get(DESIRED_ANNOTATION, "")
    try:
        spec: Json = json.loads(text)
        return spec if isinstance(spec["template"]["spec"]["containers"], list) else None
    except (ValueError, LookupError, TypeError):
        return None  # nothing there, or nothing that the operator wrote
