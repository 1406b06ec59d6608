"""The Secrets, ConfigMaps and claims that a pod needs to start. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from v4_core.kubernetes import Json


class Need(NamedTuple):
    """An object in the pod's namespace that the pod needs to start."""

    kind: str  # a kind of API version v1
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def needs(pod: Json) -> list[Need]:
    """The objects that the pod's volumes refer to and that are not optional, each once.

    Sources of environment variables are left out, because kubelet names a missing one in the container's status.
    """
    volumes = pod.get("spec", {}).get("volumes") or ()
    return list(dict.fromkeys(need for volume in volumes for need in _of_volume(volume)))


def _of_volume(volume: Json) -> Iterator[Need]:
    if claim := volume.get("persistentVolumeClaim"):
        yield Need("PersistentVolumeClaim", claim["claimName"])
    yield from _of_source(volume, "secretName")
    for source in (volume.get("projected") or {}).get("sources") or ():
        yield from _of_source(source, "name")


def _of_source(source: Json, secret_name: str) -> Iterator[Need]:
    """A required Secret or ConfigMap. A volume names its Secret in `secretName`, a projected source in `name`."""
    for kind, field, name in (("Secret", "secret", secret_name), ("ConfigMap", "configMap", "name")):
        wanted = source.get(field)
        if wanted and not wanted.get("optional"):
            yield Need(kind, wanted[name])
