"""Makes the cluster be as planned: writes what differs, deletes what is no longer wanted, takes over nothing of others.

One failing object does not keep the others from being written; what failed is returned. Knows no kind.
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
# Of a Service's spec: the server sets them once, and never lets them go.
_ASSIGNED = frozenset({"clusterIP", "clusterIPs", "ipFamily", "ipFamilies", "ipFamilyPolicy"})

_Identity = tuple[str, str, str]


class Applier:
    """Writes to one cluster. Answers go into the cache, so that the next look, soon after, sees what was written."""

    def __init__(self, api: KubeClient, discovery: Discovery, children: Children) -> None:
        self._api, self._discovery, self._children = api, discovery, children

    async def apply(self, objects: Sequence[Json], wanted: Callable[[], bool]) -> list[Failure]:
        """Write what differs, in order, as long as the owner is `wanted`. Returns what could not be written."""
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
        """Delete these, and what they own. Returns what could not be deleted."""
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
        kept = upkept(desired)
        kind, namespace, name = identity = _identity(desired)
        live = self._children.get(*identity)
        if live is None:
            resource = await self._discovery.resource(desired["apiVersion"], kind)
            live = await self._look(resource, namespace, name)
        if live is None:
            await self._make(stamped(desired))
        elif self._children.noted(*identity) == digest(kept):
            return
        elif _may_write(desired, live) and needs_write(kept, live):
            await self._change(kept, live)
        else:
            self._children.note(*identity, digest(kept))

    async def _make(self, written: Json) -> None:
        resource = await self._discovery.resource(written["apiVersion"], written["kind"])
        if create_only(written):
            self._children.put(await self._api.create(resource, written))
        else:
            # Between the look and this write somebody else may have taken the name; no precondition says "absent".
            self._children.put(await self._api.apply(resource, written))

    async def _change(self, written: dict[str, Any], live: Json) -> None:
        resource = await self._discovery.resource(written["apiVersion"], written["kind"])
        metadata = {**written["metadata"], "uid": live["metadata"]["uid"]}  # this very object, or a conflict
        result = await self._overwrite(resource, {**written, "metadata": metadata}, live)
        self._children.put(result)
        if result["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]:
            # It differs in our eyes for ever: another manager adds to it, or the server has words of its own.
            self._children.note(*_identity(live), digest(written))

    async def _overwrite(self, resource: Resource, body: Json, live: Json) -> Json:
        """Apply `body`; where fields of others keep it from being in force, these go.

        Somebody may have put another source into a volume, or minAvailable into a budget: applying adds our field to
        theirs, and the server takes only one of the two. An older server also keeps what others add to a selector.
        """
        invalid: ApiError | None = None
        try:
            live = await self._api.apply(resource, body)
        except ApiError as error:
            if error.status != _INVALID or "spec" not in body:
                raise
            invalid = error
        else:
            # A pod template in the server's own words is no reason to start pods anew.
            if "spec" not in body or "template" in body["spec"] or not needs_write(body, live):
                return live
        operations = _retaking(body, live, whole=invalid is not None)
        _, namespace, name = _identity(body)
        try:
            await self._api.patch(resource, namespace, name, operations)
        except ApiError as error:
            if invalid is None or error.passing:
                raise
            raise invalid from error  # it may be invalid by itself
        applied: Json = await self._api.apply(resource, body)
        return applied

    async def _look(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """What has the name, though the cache does not know it."""
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
            if error.status not in (404, 409):  # it is gone, or another object has its name
                raise
        self._children.forget(live)  # a finalizer may keep it for a while, which a watch will tell


def _may_write(desired: Json, live: Json) -> bool:
    """Whether `live` may be changed; False = it is fine as it is. Raises NameTaken, Leaving."""
    what = f"{live['kind']} {live['metadata']['name']}"
    if create_only(desired) and controller(desired) is None:
        return False
    if is_leaving(desired, live):
        raise Leaving(f"{what} is being deleted; it is made again when it is gone")
    if not is_ours(desired, live):
        raise NameTaken(
            f"{what} exists and was not made by this operator: delete or rename it, or rename this V4Deployment"
        )
    return True


def _retaking(body: Json, live: Json, *, whole: bool) -> list[Json]:
    """Operations that replace the fields of the spec that differ; if `whole`, those of others alone go as well."""
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
