"""Names, labels and owner of a V4Deployment's children. Pure; a V4Deployment's name has at most 40 characters.

The longest name of a child is NAME-prefill-REVISION, 59 characters, so that it still fits into a label.
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
CREATE_ONLY = {CREATE_ONLY_ANNOTATION: "true"}  # annotation of what is made if absent, and then left as it is

_HASH_DIGITS = 10


def child(v4d: V4Deployment, *parts: str) -> str:
    """Name of the child with these parts, such as prefill and a revision."""
    return "-".join((v4d.name, *parts))


def short_digest(value: Any) -> str:
    """Ten hexadecimal digits that stand for a JSON value."""
    return digest(value)[:_HASH_DIGITS]


def selector(v4d: V4Deployment, role: str = "", revision: str = "") -> dict[str, str]:
    """Labels by which pods are found: those of one role, or all of a V4Deployment's."""
    wanted = {DEPLOYMENT_LABEL: v4d.name, ROLE_LABEL: role, REVISION_LABEL: revision}
    return {key: value for key, value in wanted.items() if value}


def labels(v4d: V4Deployment, role: str = "", revision: str = "") -> dict[str, str]:
    """Labels of a child, or of a pod."""
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
    """Metadata of a child that goes with its V4Deployment."""
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
