"""What exists of a V4Deployment, read from live objects: its Deployments by revision, its pods, its Job. Pure.

Nothing here is remembered from one look to the next: which revisions exist, and which has ever served, is told by the
children alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from v4_core.kubernetes import REVISION_LABEL, ROLE_LABEL
from v4_operator.compare import belongs
from v4_operator.records import Observed
from v4_operator.spec import Json, V4Deployment

WORKER_ROLES = ("prefill", "decode", "pair")


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


def label(obj: Json, key: str) -> str:
    """A label's value; empty if there is none."""
    return str((obj["metadata"].get("labels") or {}).get(key, ""))


def leaving(obj: Json) -> bool:
    """Whether the object is being deleted."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def condition(obj: Json, kind: str) -> Json:
    """A condition of the object's status; empty if there is none."""
    found = (c for c in obj.get("status", {}).get("conditions") or () if c.get("type") == kind)
    return next(found, {})


def holds(obj: Json, kind: str) -> bool:
    """Whether a condition is True."""
    return bool(condition(obj, kind).get("status") == "True")


def moment(text: str) -> datetime:
    """The time that the API server wrote."""
    return datetime.fromisoformat(text)


def replicas(deployment: Json) -> int:
    """Pods that the Deployment was last asked for; the API server's default is 1."""
    return int(deployment.get("spec", {}).get("replicas", 1))


def count(deployment: Json | None, field: str) -> int:
    """A number of the Deployment's status; what is missing there is 0."""
    return int((deployment or {}).get("status", {}).get(field) or 0)


def _identified(deployment: Json) -> Json:
    """With the labels of its selector, which nobody can change."""
    selected = deployment["spec"]["selector"]["matchLabels"]
    metadata = deployment["metadata"]
    return {**deployment, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **selected}}}
