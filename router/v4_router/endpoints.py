"""Worker endpoints: the addresses of workers, from settings or from the pods of a V4Deployment. Pure.

An endpoint says that a worker is expected at an address and may be used. Whether the worker answers is known to its
WorkerLink.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from v4_core.kubernetes import REVISION_LABEL, WORKER_PORTS, WorkerRole


@dataclass(frozen=True, slots=True)
class WorkerEndpoint:
    """One worker as discovery knows it. Outside Kubernetes there is no pod: always ready, never leaving."""

    address: str  # host:port
    role: WorkerRole
    revision: str = ""  # prefill and decode are paired only within one revision
    pod: str = ""  # the pod's name
    uid: str = ""  # the pod's uid; a different uid means a different worker, even at the same address
    ready: bool = True  # the pod's condition Ready
    leaving: bool = False  # whether the pod is being deleted
    created: str = ""  # creation time of the pod, RFC 3339 in UTC


def listed(prefill: Sequence[str], decode: Sequence[str]) -> tuple[WorkerEndpoint, ...]:
    """Returns the endpoints of workers whose addresses are given in the settings."""
    return (*(WorkerEndpoint(a, "prefill") for a in prefill), *(WorkerEndpoint(a, "decode") for a in decode))


def of_pod(pod: Mapping[str, Any]) -> tuple[WorkerEndpoint, ...]:
    """Returns the workers of a pod, given in the Kubernetes API's JSON: one for each container port named after a role.

    Returns () while the pod has no address yet, and after its containers have ended.
    """
    meta, status = pod["metadata"], pod.get("status") or {}
    ip = status.get("podIP")
    if not ip or status.get("phase") in ("Succeeded", "Failed"):
        return ()
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports") or ()]
    return tuple(
        WorkerEndpoint(
            address=f"{f'[{ip}]' if ':' in ip else ip}:{port['containerPort']}",
            role=role,
            revision=(meta.get("labels") or {}).get(REVISION_LABEL, ""),
            pod=meta["name"],
            uid=meta["uid"],
            ready=ready,
            leaving=bool(meta.get("deletionTimestamp")),
            created=meta.get("creationTimestamp") or "",
        )
        for role in WORKER_PORTS
        for port in ports
        if port.get("name") == role
    )


def by_address(endpoints: Iterable[WorkerEndpoint]) -> dict[str, WorkerEndpoint]:
    """Returns one endpoint for each address.

    If several pods claim the same address, prefers a pod that is not being deleted, then the newest one.
    """
    result: dict[str, WorkerEndpoint] = {}
    for endpoint in sorted(endpoints, key=lambda e: (not e.leaving, e.created)):
        result[endpoint.address] = endpoint
    return result
