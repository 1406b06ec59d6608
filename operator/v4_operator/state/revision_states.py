"""Counts the workers of each existing revision for the rollout. Pure."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from v4_core.kubernetes import GROUP, REVISION_LABEL, ROLE_LABEL, Json
from v4_operator.manifests.deployments import asked_replicas
from v4_operator.observed.fleet_view import FleetView
from v4_operator.observed.live import Live
from v4_operator.observed.objects import condition, count, holds, label, leaving, moment
from v4_operator.spec.size import NONE, Size
from v4_operator.state.rollout import RevisionState

# Annotation of worker Deployments, "true" if all pods of the revision were ready at some time. The Deployment
# controller reports that only until the next change of the template.
COMPLETED_ANNOTATION = f"{GROUP}/completed"

# A pod that still exists so long after its grace period is on a node that is lost.
_LOST_AFTER = timedelta(seconds=60)


def revision_states(live: Live, fleet: FleetView) -> dict[str, RevisionState]:
    """The state of every revision that has a worker Deployment or a pod, by revision."""
    names = dict.fromkeys(label(deployment, REVISION_LABEL) for deployment in live.workers)
    names |= dict.fromkeys(revision for pod in live.pods if (revision := label(pod, REVISION_LABEL)))
    return {revision: _revision_state(live, fleet, revision) for revision in names}


def deployments_of(live: Live, revision: str) -> list[Json]:
    """The worker Deployments of one revision."""
    return [deployment for deployment in live.workers if label(deployment, REVISION_LABEL) == revision]


def remembered(deployment: Json, seen: Mapping[str, RevisionState]) -> dict[str, Any]:
    """A desired worker Deployment, with the annotation of completed revisions if its revision was ever complete."""
    state, metadata = seen.get(label(deployment, REVISION_LABEL)), deployment["metadata"]
    if state is None or not state.settled:
        return dict(deployment)
    annotations = {**metadata.get("annotations", {}), COMPLETED_ANNOTATION: "true"}
    return {**deployment, "metadata": {**metadata, "annotations": annotations}}


def _revision_state(live: Live, fleet: FleetView, revision: str) -> RevisionState:
    found = deployments_of(live, revision)
    pods = [pod for pod in live.pods if label(pod, REVISION_LABEL) == revision and not _lost(live, pod)]
    return RevisionState(
        revision=revision,
        asked=_total((label(d, ROLE_LABEL), asked_replicas(d)) for d in found),
        ready=_total((label(d, ROLE_LABEL), count(d, "readyReplicas")) for d in found),
        pods=_total((label(pod, ROLE_LABEL), 1) for pod in pods),
        probed=_proven(live, fleet, revision),
        settled=bool(found) and all(_settled(deployment) for deployment in found),
        made=min((str(d["metadata"].get("creationTimestamp", "")) for d in found), default=""),
        paired=any(label(d, ROLE_LABEL) == "pair" for d in found),
    )


def _proven(live: Live, fleet: FleetView, revision: str) -> bool:
    """Whether every router has probed the revision successfully; True if no router is requested."""
    if not live.v4d.spec.router.replicas:
        return True
    ready = sum(holds(pod, "Ready") for pod in live.pods_of("router"))  # one of them may not have answered in time
    return fleet.served_by_all(revision) and len(fleet.answers) >= ready


def _total(counts: Iterable[tuple[str, int]]) -> Size:
    """The workers in these numbers of pods by role; a pod of role pair holds one worker of each role."""
    total = NONE
    for role, number in counts:
        total = total.plus(Size(number if role != "decode" else 0, number if role != "prefill" else 0))
    return total


def _settled(deployment: Json) -> bool:
    """Whether all pods of the Deployment were ready at some time, with the present template or an earlier one."""
    if (deployment["metadata"].get("annotations") or {}).get(COMPLETED_ANNOTATION) == "true":
        return True
    return condition(deployment, "Progressing").get("reason") == "NewReplicaSetAvailable"


def _lost(live: Live, pod: Json) -> bool:
    if not leaving(pod):
        return False
    return live.observed.now > moment(pod["metadata"]["deletionTimestamp"]) + _LOST_AFTER
