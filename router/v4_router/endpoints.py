"""Where workers are: addresses, and what the cluster says of the pods behind them. Pure; asks nobody.

An endpoint says that a worker should be there and may be used; whether it answers is its link's matter.
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
    revision: str = ""  # caches move within one revision only
    pod: str = ""  # name
    uid: str = ""  # of the pod: another one is another worker, whatever its address
    ready: bool = True  # the pod's own condition
    leaving: bool = False  # the pod's deletion has begun
    created: str = ""  # the pod's creation, RFC 3339 in UTC


def listed(prefill: Sequence[str], decode: Sequence[str]) -> tuple[WorkerEndpoint, ...]:
    """Workers at addresses that somebody wrote down."""
    return (*(WorkerEndpoint(a, "prefill") for a in prefill), *(WorkerEndpoint(a, "decode") for a in decode))


def of_pod(pod: Mapping[str, Any]) -> tuple[WorkerEndpoint, ...]:
    """The workers of a pod, in the API's JSON: one for each container port that is named like a role.

    None before it has an address and after its containers have ended.
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
    """One endpoint per address: of two pods that claim it, the one that stays, else the newer one."""
    result: dict[str, WorkerEndpoint] = {}
    for endpoint in sorted(endpoints, key=lambda e: (not e.leaving, e.created)):
        result[endpoint.address] = endpoint
    return result
