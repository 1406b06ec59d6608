"""A view of a V4Deployment's live children: its Deployments by revision, its pods, its Job. Pure.

Nothing is remembered between reconciles: the children alone tell which revisions exist and which of them ever served.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from v4_core.kubernetes import REVISION_LABEL, ROLE_LABEL, Json
from v4_operator.observed.compare import belongs
from v4_operator.observed.needs import Need
from v4_operator.observed.objects import label, leaving
from v4_operator.spec.v4deployment import V4Deployment

WORKER_ROLES = ("prefill", "decode", "pair")


@dataclass(frozen=True)
class Observed:
    """The observed state: live objects from the operator's caches, and the answers of routers."""

    now: datetime
    children: Sequence[Json] = ()  # all live objects with this V4Deployment's label, including pods
    fleets: Sequence[Json] = ()  # the answer of each reachable router at /fleet
    status: Json = field(default_factory=dict)  # of the V4Deployment, as last written
    absent: frozenset[Need] = frozenset()  # objects that pods need to start and that do not exist


@dataclass(frozen=True)
class Live:
    """A view of `Observed.children`."""

    v4d: V4Deployment
    observed: Observed

    def find(self, kind: str, name: str) -> Json | None:
        """The child of this kind and name, unless it is being deleted; None if there is none."""
        return next((child for child in self.of(kind) if child["metadata"]["name"] == name), None)

    def of(self, kind: str) -> Iterable[Json]:
        """The children of one kind that are not being deleted."""
        return (child for child in self.observed.children if child["kind"] == kind and not leaving(child))

    @cached_property
    def owned(self) -> tuple[Json, ...]:
        """The children whose controller is this V4Deployment or is gone, without those that are being deleted.

        `kubectl delete --cascade=orphan` leaves children without a controller. A new V4Deployment of the same name
        adopts them.
        """
        return tuple(c for c in self.observed.children if not leaving(c) and belongs(c, self.v4d.name, self.v4d.uid))

    @cached_property
    def workers(self) -> tuple[Json, ...]:
        """The Deployments of workers, oldest first."""
        every = map(_identified, self.of("Deployment"))
        found = [d for d in every if label(d, ROLE_LABEL) in WORKER_ROLES and label(d, REVISION_LABEL)]
        return tuple(sorted(found, key=lambda d: (d["metadata"].get("creationTimestamp", ""), d["metadata"]["name"])))

    @cached_property
    def pods(self) -> tuple[Json, ...]:
        """The pods that hold resources: running and terminating ones, but not those that have ended."""
        ended = ("Succeeded", "Failed")
        return tuple(
            c
            for c in self.observed.children
            if c["kind"] == "Pod" and (c.get("status", {}).get("phase") not in ended or leaving(c))
        )

    def pods_of(self, role: str, revision: str = "") -> tuple[Json, ...]:
        """The pods of one role, and of one revision if given, that are not being deleted."""
        return tuple(
            pod
            for pod in self.pods
            if not leaving(pod) and label(pod, ROLE_LABEL) == role and revision in ("", label(pod, REVISION_LABEL))
        )


def _identified(deployment: Json) -> Json:
    """The Deployment with the labels of its selector, which are immutable, unlike its own labels."""
    selected = deployment["spec"]["selector"]["matchLabels"]
    metadata = deployment["metadata"]
    return {**deployment, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **selected}}}
