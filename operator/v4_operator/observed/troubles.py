"""Finds out why pods do not become ready, from what scheduler, kubelet and the process itself report. Pure."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from v4_core.kubernetes import ROLE_LABEL, Json
from v4_operator.observed.needs import Need, needs
from v4_operator.observed.objects import condition, holds, label, leaving, moment

# The scheduler also reports pods as unschedulable that only wait for a volume or for another pod to end.
_UNSCHEDULABLE_AFTER = timedelta(seconds=10)
_NOT_STARTED_AFTER = timedelta(seconds=60)

# Waiting reasons of a normal start; PodInitializing is that of pods with init containers.
_STARTING = ("ContainerCreating", "PodInitializing")
_WORKERS = ("prefill", "decode")  # containers with a cache
# Every other waiting reason is a failure. The list is open: kubelet gains reasons with its versions.
_WAITING = {
    "ErrImagePull": "ImagePullFailed",
    "ImagePullBackOff": "ImagePullFailed",
    "ErrImageNeverPull": "ImagePullFailed",
    "InvalidImageName": "ImagePullFailed",
    "ImageInspectError": "ImagePullFailed",
    "RegistryUnavailable": "ImagePullFailed",
    "SignatureValidationFailed": "ImagePullFailed",
    "CreateContainerConfigError": "ConfigurationMissing",
}


class Trouble(NamedTuple):
    """Something that keeps a V4Deployment from working as specified."""

    reason: str
    message: str


def pod_troubles(pods: Iterable[Json], now: datetime, absent: Collection[Need] = ()) -> list[Trouble]:
    """Returns one trouble per reason and container of a pool; its message names the first affected pod.

    `absent` has the objects that do not exist (see Observed).
    """
    found: dict[tuple[str, str, str], Trouble] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        if not holds(pod, "Ready"):
            for container, trouble in _of_pod(pod, now, absent):
                found.setdefault((label(pod, ROLE_LABEL), container, trouble.reason), trouble)
    return list(found.values())


def not_started(pod: Json, now: datetime) -> bool:
    """Whether kubelet has had the pod for so long without starting it that something must be missing."""
    started = pod.get("status", {}).get("startTime")
    return bool(started and now - moment(started) >= _NOT_STARTED_AFTER and _creating(pod))


def unmet(pods: Iterable[Json], now: datetime) -> set[Need]:
    """The objects that pods which do not start need, and of which one may not exist."""
    return {need for pod in pods if not leaving(pod) and not_started(pod, now) for need in needs(pod)}


def initializing(pods: Iterable[Json]) -> str:
    """Names the first pod whose init container is running; empty if there is none.

    The other containers of a pod wait until its init container ends, however long that takes.
    """
    for pod in pods:
        sidecars = {c["name"] for c in pod["spec"].get("initContainers") or () if c.get("restartPolicy") == "Always"}
        for status in pod.get("status", {}).get("initContainerStatuses") or ():
            if status["name"] not in sidecars and "running" in (status.get("state") or {}):
                return f"pod {pod['metadata']['name']} waits for its init container {status['name']} to end"
    return ""


def refused_pods(deployments: Iterable[Json]) -> list[Trouble]:
    """Deployments whose pods cannot be created, for instance because of a quota or an admission rule."""
    return [
        Trouble("PodsRefused", f"{deployment['metadata']['name']}: {failure.get('message', 'no pod can be created')}")
        for deployment in deployments
        if (failure := condition(deployment, "ReplicaFailure")).get("status") == "True"
    ]


def idle_jobs(jobs: Iterable[Json], now: datetime) -> list[Trouble]:
    """Jobs that never had a pod. The Job controller reports the reason only in Events, not in the status."""
    return [
        Trouble("PodsRefused", f"Job {name} has had no pod for over a minute: `kubectl describe job {name}` says why")
        for job in jobs
        if _idle(job.get("status", {}), now) and (name := job["metadata"]["name"])
    ]


def _idle(status: Json, now: datetime) -> bool:
    started = status.get("startTime")
    pods = any(status.get(count) for count in ("active", "failed", "succeeded"))
    return bool(started and not pods and now - moment(started) >= _NOT_STARTED_AFTER)


def _of_pod(pod: Json, now: datetime, absent: Collection[Need]) -> Iterator[tuple[str, Trouble]]:
    """Yields the troubles of a pod, each with the name of its container, or an empty name if it concerns the pod."""
    name = pod["metadata"]["name"]
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        since = moment(scheduled.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])
        if now - since >= _UNSCHEDULABLE_AFTER:
            yield "", Trouble("Unschedulable", f"pod {name}: {scheduled.get('message') or 'no node takes it'}")
        return
    for kind, field in (("init container", "initContainerStatuses"), ("container", "containerStatuses")):
        for status in pod.get("status", {}).get(field) or ():
            if not status.get("ready"):
                where = f"pod {name}, {kind} {status['name']}"
                yield from ((status["name"], trouble) for trouble in _of_container(where, status))
    if not_started(pod, now):
        yield "", Trouble("NotStarted", f"pod {name} has not started for over a minute: {_lack(pod, absent)}")


def _of_container(where: str, status: Json) -> Iterator[Trouble]:
    state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or last
    reason = waiting.get("reason", "")
    if ended.get("reason") == "OOMKilled":
        yield Trouble("OutOfMemory", f"{where} ran out of memory and was killed: raise its limit{_less_cache(status)}")
    elif reason == "CrashLoopBackOff" or (ended.get("exitCode") and not waiting):
        said = ended.get("message") or ended.get("reason") or "it said nothing"
        yield Trouble("Crashing", f"{where} ended with exit code {ended.get('exitCode')}: {said}")
    elif reason and reason not in _STARTING:
        yield Trouble(_WAITING.get(reason, "ContainerFailed"), f"{where}: {waiting.get('message') or reason}")


def _less_cache(status: Json) -> str:
    return ", or lower cache.memoryPercent" if status["name"] in _WORKERS else ""


def _creating(pod: Json) -> bool:
    """Whether no container of the pod ever started."""
    status = pod.get("status", {})
    states = [
        (each.get("state") or {}, each.get("lastState") or {})
        for field in ("initContainerStatuses", "containerStatuses")
        for each in status.get(field) or ()
    ]
    return bool(states) and all(
        not last and (state.get("waiting") or {}).get("reason") in _STARTING for state, last in states
    )


def _lack(pod: Json, absent: Collection[Need]) -> str:
    """Says which object kubelet waits for. Other causes appear only in kubelet's Events."""
    wanted = needs(pod)
    if missing := [str(need) for need in wanted if need in absent]:
        verb, it = ("does", "it") if len(missing) == 1 else ("do", "them")
        return f"{' and '.join(missing)} {verb} not exist; create {it}"
    paths = [
        f"host path {v['hostPath']['path']}" for v in pod.get("spec", {}).get("volumes") or () if v.get("hostPath")
    ]
    named = ", ".join([*map(str, wanted), *paths])
    return f"it needs {named}; `kubectl describe pod {pod['metadata']['name']}` says what is missing"
