"""Objects that a pod cannot start without, and that somebody else may have to make. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from v4_core.kubernetes import Json


class Need(NamedTuple):
    """An object of the pod's namespace."""

    kind: str  # of the API's version v1
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def needs(pod: Json) -> list[Need]:
    """What the pod's volumes are made of, each once, but for what is optional.

    Variables are left out: kubelet says in the container's status which of their sources it does not find.
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
    """A Secret or ConfigMap. A volume has its Secret's name in `secretName`, a projection in `name`."""
    for kind, field, name in (("Secret", "secret", secret_name), ("ConfigMap", "configMap", "name")):
        wanted = source.get(field)
        if wanted and not wanted.get("optional"):
            yield Need(kind, wanted[name])
