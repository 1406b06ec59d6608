"""The yardstick of the operator's figures: the very objects that it made, made again without it."""

from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]

_OF_THE_SERVER = ("creationTimestamp", "generation", "managedFields", "ownerReferences", "resourceVersion", "uid")


def plain(live: Mapping[str, Any], namespace: str) -> Object:
    """A live child as an object that can be created in a namespace, owned by nobody."""
    made = {key: value for key, value in live.items() if key not in ("status", "secrets")}
    metadata = {key: value for key, value in live["metadata"].items() if key not in _OF_THE_SERVER}
    made["metadata"] = metadata | {"namespace": namespace}
    if made["kind"] == "Service":
        made["spec"] = {key: value for key, value in live["spec"].items() if key not in ("clusterIP", "clusterIPs")}
    if made["kind"] == "RoleBinding":
        made["subjects"] = [subject | {"namespace": namespace} for subject in live["subjects"]]
    return made
