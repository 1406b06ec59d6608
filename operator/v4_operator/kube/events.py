"""Creates the Kubernetes Events about a V4Deployment, one for each change of a condition; see `kubectl describe`."""

import uuid
from datetime import UTC, datetime
from typing import Any

from v4_core.kubernetes import MANAGER, Json
from v4_kube.client import KubeClient
from v4_operator.kube.discovery import EVENTS


async def post(api: KubeClient, parent: Json, severity: str, reason: str, message: str) -> None:
    """Creates an Event about a V4Deployment; `severity` is Normal or Warning. Raises ApiError."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    await api.create(EVENTS, _event(parent, now) | {"type": severity, "reason": reason, "message": message})


def _event(parent: Json, now: str) -> dict[str, Any]:
    metadata = parent["metadata"]
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"namespace": metadata["namespace"], "name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}"},
        "involvedObject": {
            "apiVersion": parent["apiVersion"],
            "kind": parent["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
