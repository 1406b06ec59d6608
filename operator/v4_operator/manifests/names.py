"""Names, labels and owner references of a V4Deployment's children. Pure.

A V4Deployment's name has at most 40 characters. The longest name of a child is NAME-prefill-REVISION with at most 59
characters, so it fits into a label value.
"""

from collections.abc import Mapping
from typing import Any

from v4_core.kubernetes import (
    API_VERSION,
    DEPLOYMENT_LABEL,
    KIND,
    MANAGED_BY_LABEL,
    MANAGER,
    REVISION_LABEL,
    ROLE_LABEL,
)
from v4_operator.manifests.settings import Settings
from v4_operator.observed.compare import CREATE_ONLY_ANNOTATION, digest
from v4_operator.spec.v4deployment import V4Deployment

DOWNLOAD = "download"  # role of the Job that fetches a model
CREATE_ONLY = {CREATE_ONLY_ANNOTATION: "true"}  # annotation of objects that are created once and never updated

_HASH_DIGITS = 10


def child(v4d: V4Deployment, *parts: str) -> str:
    """Name of a child: the V4Deployment's name and these parts, such as `prefill` and a revision."""
    return "-".join((v4d.name, *parts))


def short_digest(value: Any) -> str:
    """Ten hexadecimal digits of a JSON value's hash."""
    return digest(value)[:_HASH_DIGITS]


def selector(v4d: V4Deployment, role: str = "", revision: str = "") -> dict[str, str]:
    """Labels that select a V4Deployment's pods, optionally of one role and one revision."""
    wanted = {DEPLOYMENT_LABEL: v4d.name, ROLE_LABEL: role, REVISION_LABEL: revision}
    return {key: value for key, value in wanted.items() if value}


def labels(v4d: V4Deployment, role: str = "", revision: str = "") -> dict[str, str]:
    """Labels of a child or of a pod."""
    recommended = {
        "app.kubernetes.io/name": "v4serve",
        "app.kubernetes.io/instance": v4d.name,
        "app.kubernetes.io/component": role,
        MANAGED_BY_LABEL: MANAGER,
    }
    return {key: value for key, value in recommended.items() if value} | selector(v4d, role, revision)


def metadata(
    v4d: V4Deployment,
    settings: Settings,
    name: str,
    role: str = "",
    revision: str = "",
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Metadata of a child that Kubernetes deletes together with its V4Deployment."""
    result: dict[str, Any] = {
        "name": name,
        "namespace": v4d.namespace,
        "labels": {**settings.common_labels, **labels(v4d, role, revision)},
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": v4d.name,
                "uid": v4d.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if annotations:
        result["annotations"] = dict(annotations)
    return result
