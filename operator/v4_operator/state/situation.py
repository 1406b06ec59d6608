"""Combines what one reconcile knows: the spec that is followed, the live objects and the routers' answers. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

from v4_core.kubernetes import REVISION_LABEL, Json
from v4_operator.manifests.accepted import Accepted
from v4_operator.manifests.download import Download
from v4_operator.manifests.names import DOWNLOAD, child
from v4_operator.manifests.router_objects import ROUTER
from v4_operator.manifests.workers import CONTAINERS
from v4_operator.observed.compare import contains, was_applied
from v4_operator.observed.deadline import Deadline, ready_since
from v4_operator.observed.fleet_view import FleetView
from v4_operator.observed.live import Live
from v4_operator.observed.objects import count, label
from v4_operator.observed.troubles import Trouble, idle_jobs, pod_troubles, refused_pods
from v4_operator.spec.problem import Problem
from v4_operator.spec.size import Size
from v4_operator.spec.v4deployment import V4Deployment
from v4_operator.state.revision_states import deployments_of
from v4_operator.state.rollout import RevisionState


@dataclass(frozen=True)
class Situation:
    """A V4Deployment at the time of one reconcile."""

    v4d: V4Deployment  # with the spec that is followed, which may be the last valid one
    live: Live
    fleet: FleetView
    revisions: Mapping[str, RevisionState]
    revision: str  # current: that of the spec, or of what serves while no spec can be followed
    image: str  # of its workers
    wanted: Size  # of its pools
    router_image: str = ""
    problems: Sequence[Problem] = ()
    kept: Accepted | None = None  # what is followed in place of a spec with problems
    download: Download = field(default_factory=Download)
    startable: bool = True  # whether the model is there, so that workers can be made
    desired: Sequence[Json] = ()  # objects of the plan

    @cached_property
    def current(self) -> RevisionState:
        """The state of the current revision."""
        return self.revisions.get(self.revision) or RevisionState(self.revision)

    @cached_property
    def others(self) -> list[RevisionState]:
        """The other revisions that still have a Deployment or a pod."""
        return [state for state in self.revisions.values() if state.revision != self.revision]

    @cached_property
    def olds(self) -> list[RevisionState]:
        """The other revisions that still have a Deployment."""
        live = {label(deployment, REVISION_LABEL) for deployment in self.live.workers}
        return [state for state in self.others if state.revision in live]

    @cached_property
    def deployments(self) -> list[Json]:
        """The live worker Deployments of the current revision."""
        return deployments_of(self.live, self.revision)

    @cached_property
    def router(self) -> Json | None:
        """The router's live Deployment."""
        return self.live.find("Deployment", child(self.v4d, ROUTER))

    @cached_property
    def served(self) -> bool:
        """Whether a router is ready and a probe went through prefill, transfer and decode of the current revision.

        A router is ready once it has probed any revision. If no router answers and only one revision exists, the
        ready router must have probed that one.
        """
        if not count(self.router, "readyReplicas"):
            return False
        if self.fleet.answers:
            return self.fleet.served(self.revision)
        return not self.olds and self.current.ready.pairs > 0

    @cached_property
    def meanwhile(self) -> str:
        """An old revision that serves; empty if there is none."""
        return next((old.revision for old in self.olds if self.fleet.served(old.revision)), "")

    @cached_property
    def up_to_date(self) -> bool:
        """Whether all Deployments are as desired and the Deployment controller has updated all their pods."""
        wanted = [obj for obj in self.desired if obj["kind"] == "Deployment"]
        return all(self._carried_out(obj, self.live.find("Deployment", obj["metadata"]["name"])) for obj in wanted)

    @cached_property
    def finished(self) -> bool:
        """Whether the rollout of this spec is complete."""
        if self.olds or not self.startable or not self.up_to_date:
            return False
        if not self.current.ready.covers(self.wanted):
            return False
        scaled_to_zero = not self.wanted.pairs or not self.v4d.spec.router.replicas
        return scaled_to_zero or (self.served and self._router_complete)

    @cached_property
    def worker_pods(self) -> list[Json]:
        """The worker pods of the current revision."""
        return [pod for role in CONTAINERS for pod in self.live.pods_of(role, self.revision)]

    @property
    def deadline(self) -> Deadline:
        """The progress deadline."""
        return Deadline(self.live.observed.now, timedelta(seconds=self.v4d.spec.rollout.progress_deadline_seconds))

    @cached_property
    def pods(self) -> list[Json]:
        """The pods whose troubles are reported: of the current revision, of the router and of the download Job."""
        return [*self.worker_pods, *self.live.pods_of(ROUTER), *self.live.pods_of(DOWNLOAD)]

    @cached_property
    def troubles(self) -> list[Trouble]:
        """The reasons why pods are not created or not ready."""
        deployments, observed = [*self.deployments, *([self.router] if self.router else [])], self.live.observed
        job = self.live.find("Job", self.download.job)
        return [
            *refused_pods(deployments),
            *idle_jobs([job] if job else [], observed.now),
            *pod_troubles(self.pods, observed.now, observed.absent),
        ]

    @cached_property
    def workers_stalled(self) -> bool:
        """Whether the workers of the current revision have missed the progress deadline."""
        pods = self.worker_pods
        if self.deadline.missed_by_deployments(self.deployments) or self.deadline.missed_by_pods(pods):
            return True
        asked = self.wanted.pairs and self.v4d.spec.router.replicas
        unprobed = asked and self.current.ready.covers(self.wanted) and not self.served
        return bool(unprobed and pods and self.deadline.missed_since(max(map(ready_since, pods))))

    @cached_property
    def stalled(self) -> bool:
        """Whether workers or routers have missed the progress deadline."""
        routers = self.live.pods_of(ROUTER), [self.router] if self.router else []
        late = self.deadline.missed_by_pods(routers[0]) or self.deadline.missed_by_deployments(routers[1])
        return self.workers_stalled or late

    def updated(self, deployment: Json) -> int:
        """The number of pods of a live Deployment that were created from the desired template."""
        named = (obj for obj in self.desired if _same(obj, deployment))
        desired = next(named, deployment)
        same = contains(desired["spec"]["template"], deployment["spec"]["template"])
        return count(deployment, "updatedReplicas") if same and _seen(deployment) else 0

    @property
    def _router_complete(self) -> bool:
        return count(self.router, "readyReplicas") >= self.v4d.spec.router.replicas

    def _carried_out(self, desired: Json, live: Json | None) -> bool:
        if live is None or not was_applied(desired, live):
            return False
        size = desired["spec"]["replicas"]
        return _seen(live) and count(live, "updatedReplicas") == size == count(live, "replicas")


def _same(obj: Json, other: Json) -> bool:
    return bool(obj["kind"] == other["kind"] and obj["metadata"]["name"] == other["metadata"]["name"])


def _seen(deployment: Json) -> bool:
    """Whether the counts in the Deployment's status are about its present spec."""
    return count(deployment, "observedGeneration") >= int(deployment["metadata"].get("generation", 0))
