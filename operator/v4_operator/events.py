"""Kubernetes Events about V4Deployments: one for each change of a condition, as `kubectl describe` shows them."""

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from v4_core.kubernetes import MANAGER
from v4_operator.api import Api
from v4_operator.discovery import EVENTS
from v4_operator.spec import Json
from v4_operator.status_patch import Transition


async def post(api: Api, parent: Json, transitions: Iterable[Transition]) -> None:
    """Tell of `transitions` of a V4Deployment. Raises ApiError."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for transition in transitions:
        await api.create(EVENTS, _event(parent, transition, now))


def _event(parent: Json, transition: Transition, now: str) -> dict[str, Any]:
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
        "type": transition.kind,
        "reason": transition.reason,
        "message": transition.message,
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
