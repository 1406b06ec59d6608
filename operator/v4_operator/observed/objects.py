"""Reads fields of Kubernetes objects as the API server returns them. Pure."""

from datetime import datetime
from typing import NamedTuple

from v4_core.kubernetes import Json


class Key(NamedTuple):
    """Of a V4Deployment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def key_of(obj: Json) -> Key:
    """Of a V4Deployment as the server sends it."""
    return Key(obj["metadata"]["namespace"], obj["metadata"]["name"])


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
