"""Why pods do not become ready, in the words of those who know: scheduler, kubelet, the process itself. Pure."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from v4_operator.live import condition, holds, moment
from v4_operator.spec import Json

# A scheduler says so of pods that only wait for a volume or for another pod to end.
_UNSCHEDULABLE_AFTER = timedelta(seconds=10)
_NOT_STARTED_AFTER = timedelta(seconds=60)

_WAITING = {
    "ErrImagePull": "ImagePullFailed",
    "ImagePullBackOff": "ImagePullFailed",
    "ErrImageNeverPull": "ImagePullFailed",
    "InvalidImageName": "ImagePullFailed",
    "CreateContainerConfigError": "ConfigurationMissing",
    "CreateContainerError": "ContainerFailed",
    "RunContainerError": "ContainerFailed",
    "CrashLoopBackOff": "Crashing",
}


class Trouble(NamedTuple):
    """What keeps a V4Deployment from being whole."""

    reason: str
    message: str


def pod_troubles(pods: Iterable[Json], now: datetime) -> list[Trouble]:
    """One of each reason; its message names the first pod."""
    found: dict[str, Trouble] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        if not holds(pod, "Ready"):
            for trouble in _of_pod(pod, now):
                found.setdefault(trouble.reason, trouble)
    return list(found.values())


def refused_pods(deployments: Iterable[Json]) -> list[Trouble]:
    """Pods that could not even be created: a quota, or a rule of admission."""
    return [
        Trouble("PodsRefused", f"{deployment['metadata']['name']}: {failure.get('message', 'no pod can be created')}")
        for deployment in deployments
        if (failure := condition(deployment, "ReplicaFailure")).get("status") == "True"
    ]


def _of_pod(pod: Json, now: datetime) -> Iterator[Trouble]:
    name = pod["metadata"]["name"]
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        since = moment(scheduled.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])
        if now - since >= _UNSCHEDULABLE_AFTER:
            yield Trouble("Unschedulable", f"pod {name}: {scheduled.get('message') or 'no node takes it'}")
        return
    for status in pod.get("status", {}).get("containerStatuses") or ():
        if not status.get("ready"):
            yield from _of_container(name, status)
    started = pod.get("status", {}).get("startTime")
    if started and now - moment(started) >= _NOT_STARTED_AFTER and _creating(pod):
        yield Trouble("NotStarted", f"pod {name} is not started for over a minute: {_needs(pod)}")


def _of_container(pod: str, status: Json) -> Iterator[Trouble]:
    state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or last
    where = f"pod {pod}, container {status['name']}"
    if ended.get("reason") == "OOMKilled":
        yield Trouble("OutOfMemory", f"{where} was killed for memory: raise its limit, or lower cache.memoryPercent")
    elif waiting.get("reason") == "CrashLoopBackOff" or (ended.get("exitCode") and not waiting):
        said = ended.get("message") or ended.get("reason") or "it said nothing"
        yield Trouble("Crashing", f"{where} ended with exit code {ended.get('exitCode')}: {said}")
    elif reason := _WAITING.get(waiting.get("reason", "")):
        yield Trouble(reason, f"{where}: {waiting.get('message') or waiting['reason']}")


def _creating(pod: Json) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return any((s.get("state") or {}).get("waiting", {}).get("reason") == "ContainerCreating" for s in statuses)


def _needs(pod: Json) -> str:
    """What kubelet waits for it tells in events only; so what it can be is named."""
    volumes = pod.get("spec", {}).get("volumes") or ()
    names = [f"Secret {v['secret']['secretName']}" for v in volumes if v.get("secret")]
    names += [f"claim {v['persistentVolumeClaim']['claimName']}" for v in volumes if v.get("persistentVolumeClaim")]
    names += [f"host path {v['hostPath']['path']}" for v in volumes if v.get("hostPath")]
    return f"it needs {', '.join(names)}; `kubectl describe pod {pod['metadata']['name']}` says what is missing"
