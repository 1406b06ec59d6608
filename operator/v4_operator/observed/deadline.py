"""Whether progress is overdue. Pure.

Told by the children alone: since when a pod is not ready, or could not be created. A Deployment's own deadline is asked
as well, but it ends with the first time that all its pods are ready, and so misses what a later change of size wants.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from v4_core.kubernetes import Json
from v4_operator.observed.objects import condition, holds, moment


@dataclass(frozen=True)
class Deadline:
    """How long something may stay as it is."""

    now: datetime
    limit: timedelta

    def missed_since(self, since: datetime) -> bool:
        """Whether what began then takes too long."""
        return self.now - since > self.limit

    def missed_by_pods(self, pods: Iterable[Json]) -> bool:
        """Whether a pod is not ready for too long."""
        return any(not holds(pod, "Ready") and self.missed_since(ready_since(pod)) for pod in pods)

    def missed_by_deployments(self, deployments: Iterable[Json]) -> bool:
        """Whether a Deployment says so, or cannot create pods for too long."""
        return any(map(self._missed_by, deployments))

    def _missed_by(self, deployment: Json) -> bool:
        failure = condition(deployment, "ReplicaFailure")
        refused = failure.get("status") == "True" and "lastTransitionTime" in failure
        return condition(deployment, "Progressing").get("reason") == "ProgressDeadlineExceeded" or (
            refused and self.missed_since(moment(failure["lastTransitionTime"]))
        )


def ready_since(pod: Json) -> datetime:
    """When the pod became ready, or stopped being so, or was made."""
    return moment(condition(pod, "Ready").get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])
