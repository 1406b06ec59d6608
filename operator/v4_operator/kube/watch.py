"""Keeps the cache of children current: one watch for each kind and namespace, filtered by label on the server.

A stream that breaks goes on from where it was; where the server no longer knows that version, or says anything
unexpected, the kind is listed again. A stream that is dead without saying so ends after a bounded silence.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing

from v4_core.kubernetes import MANAGED_BY_LABEL, MANAGER, Json
from v4_operator.errors import ApiError, Unreachable
from v4_operator.kube.api import Api, Resource
from v4_operator.kube.cache import Children
from v4_operator.metrics import WATCH_RESTARTS

log = logging.getLogger(__name__)

_STREAM_SECONDS = (240, 300)  # after which the server ends a stream; not all at once
_QUIET_SECONDS = 90.0  # the server says at least a bookmark every minute
_PAGE = "500"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 10.0  # seconds between tries
_SELECTOR = {"labelSelector": f"{MANAGED_BY_LABEL}={MANAGER}"}


class Watch:
    """One kind in one namespace; empty = in all."""

    def __init__(self, api: Api, resource: Resource, namespace: str, children: Children) -> None:
        self.resource, self.namespace = resource, namespace
        self.synced = asyncio.Event()  # a list was taken in
        self._api, self._children = api, children
        self._path = resource.path(namespace)
        self._version = ""  # to go on from; empty = list first
        self._secret = resource.kind == "Secret"  # whose contents need not travel
        WATCH_RESTARTS.labels(resource.kind)  # a rate needs a value before the first

    async def run(self) -> None:
        """Until cancelled."""
        clock, failures = asyncio.get_running_loop().time, 0
        while True:
            began = clock()
            try:
                if not self._version:
                    await self._list()
                await self._follow()
                failures = 0
            except ApiError as error:
                lasted = clock() - began > _LONGEST_PAUSE
                failures = 1 if lasted else failures + 1
                if not isinstance(error, Unreachable):
                    self._version = ""
                WATCH_RESTARTS.labels(self.resource.kind).inc()
                usual = failures == 1 or error.status == 410
                log.log(logging.DEBUG if usual else logging.WARNING, "%s; trying again", error)
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures, 10))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _list(self) -> None:
        objects: list[Json] = []
        query = {**_SELECTOR, "limit": _PAGE}
        while True:
            page = await self._api.get(self._path, query, metadata_only=self._secret)
            objects += map(self._typed, page.get("items") or ())
            following = page["metadata"].get("continue")
            if not following:
                break
            query["continue"] = following
        version = page["metadata"]["resourceVersion"]
        self._children.replace(self.resource.kind, self.namespace, version, objects)
        self._version = version
        self.synced.set()

    async def _follow(self) -> None:
        query = {
            **_SELECTOR,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*_STREAM_SECONDS)),
        }
        events: AsyncIterator[Json] = self._api.watch(self._path, query, _QUIET_SECONDS, metadata_only=self._secret)
        async with aclosing(events) as stream:  # type: ignore[type-var]
            async for event in stream:
                self._take(event["type"], event["object"])

    def _take(self, kind: str, obj: Json) -> None:
        if kind == "ERROR":
            raise ApiError(f"watch {self._path}", obj.get("code", 500), obj)
        if kind == "DELETED":
            self._children.remove(self._typed(obj))
        elif kind != "BOOKMARK":
            self._children.put(self._typed(obj))
        self._version = obj["metadata"]["resourceVersion"]

    def _typed(self, obj: Json) -> Json:
        """Items of lists do not say what they are, and metadata alone says that it is metadata."""
        return {**obj, "apiVersion": self.resource.api_version, "kind": self.resource.kind}


class Watches:
    """All watches of the operator."""

    def __init__(
        self,
        api: Api,
        namespaces: Iterable[str],
        children: Children,
        ended: Callable[["asyncio.Task[None]"], None],
    ) -> None:
        self._api, self._namespaces = api, tuple(namespaces)
        self._children, self._ended = children, ended
        self._running: dict[Resource, list[tuple[Watch, asyncio.Task[None]]]] = {}

    def follow(self, resources: Iterable[Resource]) -> None:
        """Watch exactly these kinds from now on."""
        wanted = list(resources)
        for resource in self._running.keys() - set(wanted):
            for _, task in self._running.pop(resource):
                task.cancel()
        for resource in wanted:
            if resource in self._running:
                continue
            self._running[resource] = [self._start(resource, namespace) for namespace in self._namespaces]

    def _start(self, resource: Resource, namespace: str) -> tuple[Watch, asyncio.Task[None]]:
        watch = Watch(self._api, resource, namespace, self._children)
        task = asyncio.create_task(watch.run(), name=f"watch {resource.path(namespace)}")
        task.add_done_callback(self._ended)
        return watch, task

    def missing(self) -> list[str]:
        """What was not listed yet."""
        watches = [watch for entries in self._running.values() for watch, _ in entries]
        return [watch.resource.path(watch.namespace) for watch in watches if not watch.synced.is_set()]

    async def synced(self) -> None:
        """Return once everything was listed."""
        for watch in [watch for entries in self._running.values() for watch, _ in entries]:
            await watch.synced.wait()

    async def close(self) -> None:
        """End all watches."""
        tasks = [task for entries in self._running.values() for _, task in entries]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
