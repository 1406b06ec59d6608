"""Decides whether the progress deadline has passed. Pure.

The decision depends on children only: how long a pod has been unready, or could not be created. A Deployment's own
progress deadline counts as well, but the Deployment controller stops checking it once all pods were ready, so it does
not cover a later change of replicas.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from v4_core.kubernetes import Json
from v4_operator.observed.objects import condition, holds, moment


@dataclass(frozen=True)
class Deadline:
    """The current time and the time that progress may take."""

    now: datetime
    limit: timedelta

    def missed_since(self, since: datetime) -> bool:
        """Whether more than the limit has passed since `since`."""
        return self.now - since > self.limit

    def missed_by_pods(self, pods: Iterable[Json]) -> bool:
        """Whether a pod has been unready for longer than the limit."""
        return any(not holds(pod, "Ready") and self.missed_since(ready_since(pod)) for pod in pods)

    def missed_by_deployments(self, deployments: Iterable[Json]) -> bool:
        """Whether a Deployment reports a missed deadline, or could not create pods for longer than the limit."""
        return any(map(self._missed_by, deployments))

    def _missed_by(self, deployment: Json) -> bool:
        failure = condition(deployment, "ReplicaFailure")
        refused = failure.get("status") == "True" and "lastTransitionTime" in failure
        return condition(deployment, "Progressing").get("reason") == "ProgressDeadlineExceeded" or (
            refused and self.missed_since(moment(failure["lastTransitionTime"]))
        )


def ready_since(pod: Json) -> datetime:
    """When the pod's readiness last changed; its creation time if it never did."""
    return moment(condition(pod, "Ready").get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])
