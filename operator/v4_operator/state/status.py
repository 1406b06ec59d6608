"""Derives the whole `status` of a V4Deployment from the situation of a reconcile. Pure.

An idle V4Deployment must cause no writes, so the status contains only what users or programs act on: rates are rounded,
loads are left out, and transition times are kept.
"""

from typing import Any

from v4_core.blocks import BLOCK_TOKENS
from v4_core.kubernetes import ROLE_LABEL, Json, WorkerRole
from v4_operator.manifests.names import selector
from v4_operator.manifests.pods import present
from v4_operator.manifests.router_objects import endpoint
from v4_operator.manifests.workers import CONTAINERS, pod_roles
from v4_operator.observed.objects import count, label
from v4_operator.spec.capacity import planned
from v4_operator.state.conditions import written
from v4_operator.state.situation import Situation
from v4_operator.state.verdicts import verdicts

_RATE_CHANGE = 0.2  # relative change of the transfer rate up to which the status keeps the former value


def status_of(now: Situation) -> dict[str, Any]:
    """The whole status."""
    observed, generation = now.live.observed, now.v4d.generation
    conditions = written(verdicts(now), observed.status.get("conditions") or (), generation, observed.now)
    return present(
        {
            "observedGeneration": generation,
            "conditions": conditions,
            "model": now.v4d.served_name,
            "endpoint": endpoint(now.v4d),
            "image": now.image,
            "revision": now.revision,
            "prefill": _pool(now, "prefill"),
            "decode": _pool(now, "decode"),
            "router": _router(now),
            "transport": _transport(now),
            "capacity": _capacity(now),
        }
    )


def _pool(now: Situation, role: WorkerRole) -> dict[str, Any]:
    pod_role = role if role in pod_roles(now.v4d.spec) else "pair"
    desired, ready = getattr(now.wanted, role), getattr(now.current.ready, role)
    updated = [now.updated(d) for d in now.deployments if role in CONTAINERS[label(d, ROLE_LABEL)]]
    labels = selector(now.v4d, pod_role)
    pool = {
        "summary": f"{ready}/{desired}",
        "replicas": sum(len(now.live.pods_of(each)) for each in CONTAINERS if role in CONTAINERS[each]),
        "desired": desired,
        "ready": ready,
        "updated": sum(updated),
        "revision": now.revision,
        "selector": ",".join(f"{key}={value}" for key, value in labels.items()),
    }
    return present(pool)  # without an empty revision, which older API servers refuse


def _router(now: Situation) -> dict[str, Any]:
    """Router status. `keysSince` keeps its value while a router does not answer, because keys only get newer."""
    ready = count(now.router, "readyReplicas")
    since = now.fleet.keys_since(ready)
    if since is None:
        since = (now.live.observed.status.get("router") or {}).get("keysSince")
    return {"desired": now.v4d.spec.router.replicas, "ready": ready} | ({"keysSince": since} if since else {})


def _transport(now: Situation) -> dict[str, Any]:
    """The transport of cache transfers; empty before the first transfer."""
    before = _before(now, "transport")
    name = now.fleet.transport(now.revision) or before.get("name")
    if not name:
        return {}
    reason = (
        "prefill and decode workers are in different pods, between which neither shared memory nor NVLink reaches"
        if now.v4d.spec.placement == "separate"
        else "workers of this version have no faster transport within a pod yet"
    )
    rate = _rate(now.fleet.bytes_per_second(now.revision), int(before.get("bytesPerSecond") or 0))
    return present({"name": name, "reason": reason}) | ({"bytesPerSecond": rate} if rate else {})


def _rate(measured: float, before: int) -> int:
    """The measured rate in two significant digits; the former rate if it differs by at most 20 %."""
    if measured <= 0 or abs(measured - before) <= _RATE_CHANGE * before:
        return before
    return int(float(f"{measured:.1e}"))


def _capacity(now: Situation) -> dict[str, Any]:
    """Capacity of the decode workers. While no router answers, the reported numbers keep their values."""
    result: dict[str, Any] = {}
    if plan := planned(now.v4d, "decode"):
        result = {"plannedTokens": plan.tokens * now.wanted.decode, "plannedSlotsPerWorker": plan.slots}
    if reported := now.fleet.slots("decode", now.revision):
        return {**result, "reportedTokens": sum(reported) * BLOCK_TOKENS, "reportedSlotsPerWorker": min(reported)}
    if now.fleet.answers:
        return result
    return result | {key: value for key, value in _before(now, "capacity").items() if key.startswith("reported")}


def _before(now: Situation, key: str) -> Json:
    """A part of the present status, or an empty mapping if that status is about another revision."""
    status = now.live.observed.status
    known: Json = status.get(key) or {}
    return known if status.get("revision") == now.revision else {}
