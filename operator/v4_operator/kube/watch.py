"""Keeps the cache of children current: one watch for each kind and namespace, filtered by label on the server."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from v4_core.kubernetes import MANAGED_BY_LABEL, MANAGER, Json
from v4_kube.client import KubeClient, Resource
from v4_kube.errors import ApiError
from v4_kube.watch import Watch
from v4_operator.kube.cache import Children
from v4_operator.metrics import WATCH_RESTARTS

log = logging.getLogger(__name__)

_SELECTOR = f"{MANAGED_BY_LABEL}={MANAGER}"
_EXPIRED = 410  # HTTP: the server no longer has the resourceVersion


class _Cached:
    """Passes the objects of one kind in one namespace, or in all if it is empty, to the cache."""

    def __init__(self, resource: Resource, namespace: str, children: Children) -> None:
        self._resource, self._namespace, self._children = resource, namespace, children
        WATCH_RESTARTS.labels(resource.kind)  # a rate needs a value before the first restart

    def replace(self, objects: Sequence[Json], version: str) -> None:
        self._children.replace(self._resource.kind, self._namespace, version, map(self._typed, objects))

    def put(self, obj: Json) -> None:
        self._children.put(self._typed(obj))

    def remove(self, obj: Json) -> None:
        self._children.remove(self._typed(obj))

    def failed(self, error: ApiError, failures: int) -> None:
        WATCH_RESTARTS.labels(self._resource.kind).inc()
        usual = failures == 1 or error.status == _EXPIRED
        log.log(logging.DEBUG if usual else logging.WARNING, "%s; trying again", error)

    def _typed(self, obj: Json) -> Json:
        """Adds the kind: items of lists have none, and that of metadata alone is PartialObjectMetadata."""
        return {**obj, "apiVersion": self._resource.api_version, "kind": self._resource.kind}


class Watches:
    """All watches of the operator. `ended` is called with the task of a watch that ends."""

    def __init__(
        self,
        api: KubeClient,
        namespaces: Iterable[str],
        children: Children,
        ended: Callable[["asyncio.Task[None]"], None],
    ) -> None:
        self._api, self._namespaces = api, tuple(namespaces)
        self._children, self._ended = children, ended
        self._running: dict[Resource, list[tuple[Watch, asyncio.Task[None]]]] = {}

    def follow(self, resources: Iterable[Resource]) -> None:
        """Watches exactly these kinds from now on."""
        wanted = list(resources)
        for resource in self._running.keys() - set(wanted):
            for _, task in self._running.pop(resource):
                task.cancel()
        for resource in wanted:
            if resource not in self._running:
                self._running[resource] = [self._start(resource, namespace) for namespace in self._namespaces]

    def _start(self, resource: Resource, namespace: str) -> tuple[Watch, asyncio.Task[None]]:
        path = resource.path(namespace)
        sink = _Cached(resource, namespace, self._children)
        # The contents of Secrets are not needed, and are therefore not transferred.
        watch = Watch(self._api, path, _SELECTOR, sink, metadata_only=resource.kind == "Secret")
        task = asyncio.create_task(watch.run(), name=f"watch {path}")
        task.add_done_callback(self._ended)
        return watch, task

    def missing(self) -> list[str]:
        """Returns the paths that have not been listed yet."""
        watches = [watch for entries in self._running.values() for watch, _ in entries]
        return [watch.path for watch in watches if not watch.synced.is_set()]

    async def synced(self) -> None:
        """Returns after everything has been listed."""
        for watch in [watch for entries in self._running.values() for watch, _ in entries]:
            await watch.synced.wait()

    async def close(self) -> None:
        """Ends all watches."""
        tasks = [task for entries in self._running.values() for _, task in entries]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
