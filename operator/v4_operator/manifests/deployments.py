"""Builds Deployments and reads back the spec that the operator last wrote to one. Pure.

Others may have changed a live Deployment: its image, its replicas, or by injecting a container. The operator therefore
stores the spec that it wrote in an annotation, continues from that spec, and reverts the other changes.
"""

import json
from typing import Any

from v4_core.kubernetes import GROUP, REVISION_LABEL, ROLE_LABEL, Json
from v4_operator.manifests.names import metadata
from v4_operator.manifests.settings import Settings
from v4_operator.observed.objects import label, replicas
from v4_operator.spec.v4deployment import V4Deployment

DESIRED_ANNOTATION = f"{GROUP}/desired"  # JSON of the spec that the operator last wrote


def deployment(
    v4d: V4Deployment, settings: Settings, name: str, role: str, spec: Json, revision: str = ""
) -> dict[str, Any]:
    """A Deployment with its own spec in an annotation."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(v4d, settings, name, role, revision, {DESIRED_ANNOTATION: text}),
        "spec": spec,
    }


def kept(v4d: V4Deployment, settings: Settings, live: Json, size: int) -> dict[str, Any]:
    """A live Deployment as the operator last wrote it, with another number of replicas. Its pods do not restart."""
    spec = {**_remembered(live), "replicas": size}
    name, role, revision = live["metadata"]["name"], label(live, ROLE_LABEL), label(live, REVISION_LABEL)
    return deployment(v4d, settings, name, role, spec, revision)


def chosen_image(live: Json, container: str) -> str:
    """The image that the operator chose for a container; empty if the Deployment has no container of this name."""
    containers = _remembered(live)["template"]["spec"]["containers"]
    return next((str(each.get("image", "")) for each in containers if each["name"] == container), "")


def asked_replicas(live: Json) -> int:
    """The number of replicas that the operator last wrote."""
    return replicas({"spec": _remembered(live)})


def remembers(live: Json) -> bool:
    """Whether the annotation with the last written spec is present and readable.

    It is missing if an older version of the operator created the Deployment, or if its annotations were replaced.
    """
    return _noted(live) is not None


def _remembered(live: Json) -> Json:
    """The spec that the operator last wrote; the live spec if the annotation is missing."""
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
        return None  # the annotation is missing, or the operator did not write it
