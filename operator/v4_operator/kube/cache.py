"""In-memory caches of V4Deployments and of the objects that the operator created for them. No I/O.

Objects come from watches and from the answers to the operator's own writes, in any order. Of two versions of an object
the newer one is kept, and a deleted object never reappears. The contents of Secrets are never kept.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from v4_core.kubernetes import DEPLOYMENT_LABEL, KIND, Json
from v4_operator.observed.compare import controller
from v4_operator.observed.objects import Key, key_of

_REMEMBERED = 10_000  # deletions; an answer to an earlier write arrives within seconds
_INTERNED = 64  # longest string that is interned: names, images, words of the API


class _Identity(NamedTuple):
    kind: str
    namespace: str
    name: str


def compact(obj: Json) -> dict[str, Any]:
    """Returns a copy without managedFields and contents of Secrets; equal strings of all copies share memory."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    secrets = ("data", "stringData") if obj.get("kind") == "Secret" else ()
    kept = {key: value for key, value in obj.items() if key not in secrets}
    shared: dict[str, Any] = _shared({**kept, "metadata": metadata})
    return shared


def _shared(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {sys.intern(key): _shared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shared(item) for item in value]
    return sys.intern(value) if isinstance(value, str) and len(value) <= _INTERNED else value


def newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is later than another one; if they are not numbers, whether they differ."""
    return int(version) > int(than) if version.isdigit() and than.isdigit() else version != than


class _Deleted:
    """The last deletions: the answer to a write may arrive after the event that its object was deleted.

    To a watch by label, an object that loses the label is deleted too. It may come back, with a later version.
    """

    def __init__(self) -> None:
        self._versions: dict[str, str] = {}  # by uid

    def add(self, obj: Json) -> None:
        self._versions[obj["metadata"]["uid"]] = obj["metadata"]["resourceVersion"]
        if len(self._versions) > _REMEMBERED:
            del self._versions[next(iter(self._versions))]

    def __contains__(self, obj: Json) -> bool:
        version = self._versions.get(obj["metadata"]["uid"])
        return version is not None and not newer(obj["metadata"]["resourceVersion"], version)


class Parents:
    """The cache of V4Deployments."""

    def __init__(self) -> None:
        self._objects: dict[Key, Json] = {}
        self._deleted = _Deleted()

    def get(self, key: Key) -> Json | None:
        """The last known state."""
        return self._objects.get(key)

    def all(self) -> list[Key]:
        """The keys of all V4Deployments."""
        return list(self._objects)

    def items(self) -> Iterable[tuple[Key, Json]]:
        """All V4Deployments in their last known state."""
        return self._objects.items()

    def put(self, obj: Json) -> bool:
        """Keeps `obj` unless a newer state is known. Returns whether it was kept."""
        key, known = key_of(obj), self._objects.get(key_of(obj))
        if obj in self._deleted or (known is not None and not _later(obj["metadata"], known["metadata"])):
            return False
        self._objects[key] = compact(obj)
        return True

    def remove(self, obj: Json) -> bool:
        """Removes `obj`, which was deleted, unless another object has its name. Returns whether it was known."""
        key, known = key_of(obj), self._objects.get(key_of(obj))
        self._deleted.add(obj)
        if known is None or known["metadata"]["uid"] != obj["metadata"]["uid"]:
            return False
        del self._objects[key]
        return True

    def keep_only(self, before: Iterable[Key], uids: set[str]) -> None:
        """Removes those of the keys `before` that are not in a list requested later, which has these `uids`."""
        for key in before:
            known = self._objects.get(key)
            if known is not None and known["metadata"]["uid"] not in uids:
                del self._objects[key]


def _later(metadata: Json, known: Json) -> bool:
    """Whether an object replaces the known one of the same name."""
    if metadata["uid"] != known["uid"]:
        return bool(metadata["creationTimestamp"] >= known["creationTimestamp"])
    return newer(metadata["resourceVersion"], known["resourceVersion"])


class Children:
    """The cache of children. `changed` is called with the key of each V4Deployment whose children change."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._objects: dict[_Identity, Json] = {}
        self._owned: dict[Key, dict[_Identity, Json]] = {}
        self._notes: dict[_Identity, str] = {}
        self._deleted = _Deleted()

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """One object, whatever its owner."""
        return self._objects.get(_Identity(kind, namespace, name))

    def note(self, kind: str, namespace: str, name: str, text: str) -> None:
        """Stores a note on an object, until the object changes."""
        identity = _Identity(kind, namespace, name)
        if identity in self._objects:
            self._notes[identity] = text

    def noted(self, kind: str, namespace: str, name: str) -> str:
        """The note on an object in its present state; empty if there is none."""
        return self._notes.get(_Identity(kind, namespace, name), "")

    def of(self, key: Key, uid: str) -> list[Json]:
        """The children of the V4Deployment with this uid; those of a former one of the same name are left out."""
        return [obj for obj in self._owned.get(key, {}).values() if not _of_another(obj, uid)]

    def put(self, obj: Json) -> None:
        """Keeps `obj` unless a newer state is known."""
        identity = _identity(obj)
        known = self._objects.get(identity)
        if obj in self._deleted or (known is not None and not _later(obj["metadata"], known["metadata"])):
            return
        concerned = {self._drop(identity)}
        kept = self._objects[identity] = compact(obj)
        if owner := _owner(kept):
            self._owned.setdefault(owner, {})[identity] = kept
            concerned.add(owner)
        self._notify(concerned)

    def remove(self, obj: Json) -> None:
        """Removes `obj`, which was deleted."""
        self._deleted.add(obj)
        self.forget(obj)

    def forget(self, obj: Json) -> None:
        """Removes `obj` until it is put again, unless another object has its name."""
        identity = _identity(obj)
        known = self._objects.get(identity)
        if known is not None and known["metadata"]["uid"] == obj["metadata"]["uid"]:
            self._notify({self._drop(identity)})

    def replace(self, kind: str, namespace: str, version: str, objects: Iterable[Json]) -> None:
        """Replaces all objects of a kind in a namespace (empty: in all) by a list of this resourceVersion."""
        listed = {_identity(obj): obj for obj in objects}
        absent = [identity for identity in self._scope(kind, namespace, version) if identity not in listed]
        self._notify({self._drop(identity) for identity in absent})
        for obj in listed.values():
            self.put(obj)

    def _scope(self, kind: str, namespace: str, version: str) -> Iterator[_Identity]:
        """The known objects that a list of this resourceVersion would contain if they existed."""
        for identity, obj in self._objects.items():
            covered = identity.kind == kind and namespace in ("", identity.namespace)
            if covered and not newer(obj["metadata"]["resourceVersion"], version):
                yield identity

    def _drop(self, identity: _Identity) -> Key | None:
        """Removes an object if it is known. Returns the key of its V4Deployment."""
        self._notes.pop(identity, None)
        known = self._objects.pop(identity, None)
        owner = _owner(known) if known is not None else None
        if owner is not None:
            del self._owned[owner][identity]
            if not self._owned[owner]:
                del self._owned[owner]
        return owner

    def _notify(self, concerned: Iterable[Key | None]) -> None:
        for key in concerned:
            if key is not None:
                self._changed(key)


def _identity(obj: Json) -> _Identity:
    return _Identity(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"])


def _owner(obj: Json) -> Key | None:
    name = (obj["metadata"].get("labels") or {}).get(DEPLOYMENT_LABEL)
    return Key(obj["metadata"]["namespace"], name) if name else None


def _of_another(obj: Json, uid: str) -> bool:
    owner = controller(obj)
    return bool(owner and owner["kind"] == KIND and owner["uid"] != uid)
