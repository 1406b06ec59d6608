"""What is known of the cluster, in memory: V4Deployments, and the objects that the operator made for them. No I/O.

Objects come from watches and from the answers to the operator's own writes, in any order; of two versions the newer
one stays, and what went stays gone. Contents of Secrets are never kept.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from v4_core.kubernetes import DEPLOYMENT_LABEL, KIND, Json
from v4_operator.observed.compare import controller
from v4_operator.observed.objects import Key, key_of

_REMEMBERED = 10_000  # deletions; an answer that was under way comes within seconds
_INTERNED = 64  # characters up to which equal strings are one object: names, images, words of the API


class _Identity(NamedTuple):
    kind: str
    namespace: str
    name: str


def compact(obj: Json) -> dict[str, Any]:
    """A copy to keep: without the history of fields, without secrets, its strings shared with other objects."""
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
    """Whether one resourceVersion is later; where they are no numbers nobody knows, and it counts as later."""
    return int(version) > int(than) if version.isdigit() and than.isdigit() else version != than


class _Gone:
    """What went last, and when: the answer to a write may come after the news that its object is no more.

    What only lost its label counts as gone as well, to those who watch by label, and may come back later.
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
    """The V4Deployments."""

    def __init__(self) -> None:
        self._objects: dict[Key, Json] = {}
        self._gone = _Gone()

    def get(self, key: Key) -> Json | None:
        """As it was seen last."""
        return self._objects.get(key)

    def all(self) -> list[Key]:
        """The keys of all."""
        return list(self._objects)

    def items(self) -> Iterable[tuple[Key, Json]]:
        """All, as they were seen last."""
        return self._objects.items()

    def put(self, obj: Json) -> bool:
        """Keep `obj` unless something newer is known; whether it was kept."""
        key, known = key_of(obj), self._objects.get(key_of(obj))
        if obj in self._gone or (known is not None and not _later(obj["metadata"], known["metadata"])):
            return False
        self._objects[key] = compact(obj)
        return True

    def remove(self, obj: Json) -> bool:
        """Forget `obj`, which went, unless another one has its name by now; whether it was known."""
        key, known = key_of(obj), self._objects.get(key_of(obj))
        self._gone.add(obj)
        if known is None or known["metadata"]["uid"] != obj["metadata"]["uid"]:
            return False
        del self._objects[key]
        return True

    def keep_only(self, before: Iterable[Key], uids: set[str]) -> None:
        """Forget those of `before` that a list, asked for later, does not have."""
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
    """What the operator made. `changed` is told the V4Deployments that a change concerns."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._objects: dict[_Identity, Json] = {}
        self._owned: dict[Key, dict[_Identity, Json]] = {}
        self._notes: dict[_Identity, str] = {}
        self._gone = _Gone()

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """One object, whoever it belongs to."""
        return self._objects.get(_Identity(kind, namespace, name))

    def note(self, kind: str, namespace: str, name: str, text: str) -> None:
        """Remember something about an object for as long as it stays as it is."""
        identity = _Identity(kind, namespace, name)
        if identity in self._objects:
            self._notes[identity] = text

    def noted(self, kind: str, namespace: str, name: str) -> str:
        """What was noted about the object as it is; empty if nothing was."""
        return self._notes.get(_Identity(kind, namespace, name), "")

    def of(self, key: Key, uid: str) -> list[Json]:
        """All of one V4Deployment, but what belongs to a former one of the same name."""
        return [obj for obj in self._owned.get(key, {}).values() if not _of_another(obj, uid)]

    def put(self, obj: Json) -> None:
        """Keep `obj` unless something newer is known."""
        identity = _identity(obj)
        known = self._objects.get(identity)
        if obj in self._gone or (known is not None and not _later(obj["metadata"], known["metadata"])):
            return
        concerned = {self._drop(identity)}
        kept = self._objects[identity] = compact(obj)
        if owner := _owner(kept):
            self._owned.setdefault(owner, {})[identity] = kept
            concerned.add(owner)
        self._tell(concerned)

    def remove(self, obj: Json) -> None:
        """Forget `obj`, which went."""
        self._gone.add(obj)
        self.forget(obj)

    def forget(self, obj: Json) -> None:
        """Forget `obj` until it is seen again, unless another one has its name by now."""
        identity = _identity(obj)
        known = self._objects.get(identity)
        if known is not None and known["metadata"]["uid"] == obj["metadata"]["uid"]:
            self._tell({self._drop(identity)})

    def replace(self, kind: str, namespace: str, version: str, objects: Iterable[Json]) -> None:
        """Take a list of that version as all there is of a kind in a namespace; empty = in all namespaces."""
        listed = {_identity(obj): obj for obj in objects}
        gone = [identity for identity in self._scope(kind, namespace, version) if identity not in listed]
        self._tell({self._drop(identity) for identity in gone})
        for obj in listed.values():
            self.put(obj)

    def _scope(self, kind: str, namespace: str, version: str) -> Iterator[_Identity]:
        """What a list of `version` would show."""
        for identity, obj in self._objects.items():
            covered = identity.kind == kind and namespace in ("", identity.namespace)
            if covered and not newer(obj["metadata"]["resourceVersion"], version):
                yield identity

    def _drop(self, identity: _Identity) -> Key | None:
        """Forget an object, if it is known; whose it was."""
        self._notes.pop(identity, None)
        known = self._objects.pop(identity, None)
        owner = _owner(known) if known is not None else None
        if owner is not None:
            del self._owned[owner][identity]
            if not self._owned[owner]:
                del self._owned[owner]
        return owner

    def _tell(self, concerned: Iterable[Key | None]) -> None:
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
