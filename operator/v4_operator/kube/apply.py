"""Brings objects in the cluster to their desired state: writes those that differ, deletes those that are not desired.

Objects that belong to somebody else are never changed. An error of one object does not stop the writes of the others;
all errors are returned. Nothing here depends on the kind of an object.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from v4_core.kubernetes import Json
from v4_kube.client import KubeClient, Resource
from v4_kube.errors import ApiError
from v4_operator.errors import Failure, KindMissing, Leaving, NameTaken
from v4_operator.kube.cache import Children
from v4_operator.kube.discovery import Discovery
from v4_operator.observed.compare import (
    contains,
    controller,
    create_only,
    digest,
    is_leaving,
    is_ours,
    needs_write,
    stamped,
    upkept,
)

_INVALID = 422  # HTTP
# Fields of a Service's spec that the server assigns and that cannot be removed afterwards.
_ASSIGNED = frozenset({"clusterIP", "clusterIPs", "ipFamily", "ipFamilies", "ipFamilyPolicy"})

_Identity = tuple[str, str, str]


class Applier:
    """Writes to one cluster. The server's answers go into the cache, so that the next reconcile sees them at once."""

    def __init__(self, api: KubeClient, discovery: Discovery, children: Children) -> None:
        self._api, self._discovery, self._children = api, discovery, children

    async def apply(self, objects: Sequence[Json], wanted: Callable[[], bool]) -> list[Failure]:
        """Writes the objects that differ, in order, while the owner is `wanted`. Returns the errors."""
        errors: list[Failure] = []
        for desired in objects:
            if not wanted():
                break
            try:
                await self._ensure(desired)
            except (ApiError, NameTaken, Leaving, KindMissing) as error:
                errors.append(error)
        if any(isinstance(error, ApiError) and error.status == 404 for error in errors):
            await self._discovery.try_refresh()  # the server may have been upgraded
        return errors

    async def prune(self, objects: Iterable[Json]) -> list[Failure]:
        """Deletes these objects and the objects that they own. Returns the errors."""
        errors: list[Failure] = []
        for live in objects:
            if live["metadata"].get("deletionTimestamp"):
                continue
            try:
                await self._delete(live)
            except (ApiError, KindMissing) as error:
                errors.append(error)
        return errors

    async def _ensure(self, desired: Json) -> None:
        written = upkept(desired)
        kind, namespace, name = identity = _identity(desired)
        live = self._children.get(*identity)
        if live is None:
            resource = await self._discovery.resource(desired["apiVersion"], kind)
            live = await self._read(resource, namespace, name)
        if live is None:
            await self._create(stamped(desired))
        elif self._children.noted(*identity) == digest(written):
            return
        elif _may_write(desired, live) and needs_write(written, live):
            await self._change(written, live)
        else:
            self._children.note(*identity, digest(written))

    async def _create(self, written: Json) -> None:
        resource = await self._discovery.resource(written["apiVersion"], written["kind"])
        if create_only(written):
            self._children.put(await self._api.create(resource, written))
        else:
            # Server-side apply has no precondition that an object is absent: an object of this name that somebody else
            # creates between the read and this write is changed.
            self._children.put(await self._api.apply(resource, written))

    async def _change(self, written: dict[str, Any], live: Json) -> None:
        resource = await self._discovery.resource(written["apiVersion"], written["kind"])
        # With the uid, the server answers 409 if another object has the name by now.
        metadata = {**written["metadata"], "uid": live["metadata"]["uid"]}
        result = await self._overwrite(resource, {**written, "metadata": metadata}, live)
        self._children.put(result)
        if result["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]:
            # The write changed nothing, although the object differs: another manager adds to it, or the server stores a
            # value in another form. The object is not written again until it changes.
            self._children.note(*_identity(live), digest(written))

    async def _overwrite(self, resource: Resource, body: Json, live: Json) -> Json:
        """Applies `body`, and removes fields of other managers that keep it from taking effect.

        Another manager may have set a second source of a volume, or minAvailable of a disruption budget. Apply adds the
        operator's field to it, and the server refuses the two together. An older server also keeps the labels that
        others add to a selector.
        """
        invalid: ApiError | None = None
        try:
            live = await self._api.apply(resource, body)
        except ApiError as error:
            if error.status != _INVALID or "spec" not in body:
                raise
            invalid = error
        else:
            # A pod template that differs only in form is not replaced, because new pods would be started.
            if "spec" not in body or "template" in body["spec"] or not needs_write(body, live):
                return live
        operations = _replacement(body, live, whole=invalid is not None)
        _, namespace, name = _identity(body)
        try:
            await self._api.patch(resource, namespace, name, operations)
        except ApiError as error:
            if invalid is None or error.passing:
                raise
            raise invalid from error  # the cause may be `body` itself
        applied: Json = await self._api.apply(resource, body)
        return applied

    async def _read(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Returns the object of this name that the cache does not have, or None."""
        try:
            obj: Json = await self._api.get(resource.path(namespace, name))
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return obj

    async def _delete(self, live: Json) -> None:
        kind, namespace, name = _identity(live)
        resource = await self._discovery.resource(live["apiVersion"], kind)
        try:
            await self._api.delete(resource, namespace, name, live["metadata"]["uid"])
        except ApiError as error:
            if error.status not in (404, 409):  # it was deleted already, or another object has its name
                raise
        self._children.forget(live)  # if a finalizer keeps the object, the watch reports it again


def _may_write(desired: Json, live: Json) -> bool:
    """Whether `live` may be changed; False if it stays as it is. Raises NameTaken or Leaving if it must not."""
    what = f"{live['kind']} {live['metadata']['name']}"
    if create_only(desired) and controller(desired) is None:
        return False
    if is_leaving(desired, live):
        raise Leaving(f"{what} is being deleted; it is created again afterwards")
    if not is_ours(desired, live):
        raise NameTaken(
            f"{what} exists and was not created by this operator: delete or rename it, or rename this V4Deployment"
        )
    return True


def _replacement(body: Json, live: Json, *, whole: bool) -> list[Json]:
    """JSON patch that replaces the differing fields of the spec and, if `whole`, removes those of other managers."""
    wanted, there = body["spec"], live["spec"]
    differing = [key for key, value in wanted.items() if not contains({key: value}, there)]
    others = [key for key in there if key not in wanted and key not in _ASSIGNED] if whole else []
    return [
        {"op": "test", "path": "/metadata/uid", "value": body["metadata"]["uid"]},
        *({"op": "remove", "path": f"/spec/{key}"} for key in others),
        *({"op": "add", "path": f"/spec/{key}", "value": wanted[key]} for key in differing),
    ]


def _identity(obj: Json) -> _Identity:
    return obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"]
