"""What exists of a V4Deployment, read from live objects: its Deployments by revision, its pods, its Job. Pure.

Nothing here is remembered from one look to the next: which revisions exist, and which has ever served, is told by the
children alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from v4_core.kubernetes import REVISION_LABEL, ROLE_LABEL, Json
from v4_operator.observed.compare import belongs
from v4_operator.observed.needs import Need
from v4_operator.observed.objects import label, leaving
from v4_operator.spec.problem import Problem
from v4_operator.spec.v4deployment import V4Deployment

WORKER_ROLES = ("prefill", "decode", "pair")


@dataclass(frozen=True)
class Observed:
    """What exists, as the operator's caches and the routers say."""

    now: datetime
    children: Sequence[Json] = ()  # every live object with this V4Deployment's label, pods too
    fleets: Sequence[Json] = ()  # what each reachable router answers at /fleet
    status: Json = field(default_factory=dict)  # of the V4Deployment, as it was written last
    absent: frozenset[Need] = frozenset()  # what pods that do not start need and the API server does not have
    unread: Problem | None = None  # why its spec cannot even be read


@dataclass(frozen=True)
class Live:
    """A view of `Observed.children`."""

    v4d: V4Deployment
    observed: Observed

    def find(self, kind: str, name: str) -> Json | None:
        """The child of this kind and name that is not being deleted."""
        return next((child for child in self.of(kind) if child["metadata"]["name"] == name), None)

    def of(self, kind: str) -> Iterable[Json]:
        """Children of one kind that are not being deleted."""
        return (child for child in self.observed.children if child["kind"] == kind and not leaving(child))

    @cached_property
    def owned(self) -> tuple[Json, ...]:
        """Children that this V4Deployment itself controls, or nobody any more, without those being deleted.

        `kubectl delete --cascade=orphan` leaves children without a controller; another V4Deployment of the name has
        them then.
        """
        return tuple(c for c in self.observed.children if not leaving(c) and belongs(c, self.v4d.name, self.v4d.uid))

    @cached_property
    def workers(self) -> tuple[Json, ...]:
        """Deployments of workers, the oldest first."""
        every = map(_identified, self.of("Deployment"))
        found = [d for d in every if label(d, ROLE_LABEL) in WORKER_ROLES and label(d, REVISION_LABEL)]
        return tuple(sorted(found, key=lambda d: (d["metadata"].get("creationTimestamp", ""), d["metadata"]["name"])))

    @cached_property
    def pods(self) -> tuple[Json, ...]:
        """Pods that hold resources: those being deleted too, but not those that ended."""
        ended = ("Succeeded", "Failed")
        return tuple(
            c
            for c in self.observed.children
            if c["kind"] == "Pod" and (c.get("status", {}).get("phase") not in ended or leaving(c))
        )

    def pods_of(self, role: str, revision: str = "") -> tuple[Json, ...]:
        """Pods of one role, of one revision if given, that are not being deleted."""
        return tuple(
            pod
            for pod in self.pods
            if not leaving(pod) and label(pod, ROLE_LABEL) == role and revision in ("", label(pod, REVISION_LABEL))
        )


def _identified(deployment: Json) -> Json:
    """With the labels of its selector, which nobody can change."""
    selected = deployment["spec"]["selector"]["matchLabels"]
    metadata = deployment["metadata"]
    return {**deployment, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **selected}}}
