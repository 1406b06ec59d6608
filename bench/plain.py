"""The yardstick for the operator: the objects that it created, created again without it."""

from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]

_SERVER_FIELDS = ("creationTimestamp", "generation", "managedFields", "ownerReferences", "resourceVersion", "uid")


def plain(live: Mapping[str, Any], namespace: str) -> Object:
    """Return a live child as an object that can be created in a namespace, without an owner."""
    made = {key: value for key, value in live.items() if key not in ("status", "secrets")}
    metadata = {key: value for key, value in live["metadata"].items() if key not in _SERVER_FIELDS}
    made["metadata"] = metadata | {"namespace": namespace}
    if made["kind"] == "Service":
        made["spec"] = {key: value for key, value in live["spec"].items() if key not in ("clusterIP", "clusterIPs")}
    if made["kind"] == "RoleBinding":
        made["subjects"] = [subject | {"namespace": namespace} for subject in live["subjects"]]
    return made
