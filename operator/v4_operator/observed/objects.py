"""Reads fields of Kubernetes objects as the API server returns them. Pure."""

from datetime import datetime
from typing import NamedTuple

from v4_core.kubernetes import Json


class Key(NamedTuple):
    """Namespace and name of a V4Deployment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def key_of(obj: Json) -> Key:
    """The key of a V4Deployment as the API server returns it."""
    return Key(obj["metadata"]["namespace"], obj["metadata"]["name"])


def label(obj: Json, key: str) -> str:
    """The value of a label; empty if the object does not have it."""
    return str((obj["metadata"].get("labels") or {}).get(key, ""))


def leaving(obj: Json) -> bool:
    """Whether the object is being deleted."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def condition(obj: Json, kind: str) -> Json:
    """A condition of the object's status; an empty mapping if the object does not have it."""
    found = (c for c in obj.get("status", {}).get("conditions") or () if c.get("type") == kind)
    return next(found, {})


def holds(obj: Json, kind: str) -> bool:
    """Whether the status of a condition is True."""
    return bool(condition(obj, kind).get("status") == "True")


def moment(text: str) -> datetime:
    """Parses a timestamp of the API server."""
    return datetime.fromisoformat(text)


def replicas(deployment: Json) -> int:
    """The replicas in the Deployment's spec; 1, the API server's default, if absent."""
    return int(deployment.get("spec", {}).get("replicas", 1))


def count(deployment: Json | None, field: str) -> int:
    """A number in the Deployment's status; 0 if absent."""
    return int((deployment or {}).get("status", {}).get(field) or 0)
