"""Connects the parts of a leading operator: caches, watches, the work queue and the periodic resync.

Does not know kopf: `on_event` takes the V4Deployments.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

from v4_core.kubernetes import Json
from v4_kube.client import KubeClient, own_namespace
from v4_kube.errors import ApiError
from v4_operator.config import OperatorConfig
from v4_operator.kube.cache import Children, Parents
from v4_operator.kube.discovery import Discovery
from v4_operator.kube.fleet import Fleets
from v4_operator.kube.watch import Watches
from v4_operator.kube.work_queue import WorkQueue
from v4_operator.manifests.settings import Settings
from v4_operator.metrics import DEPLOYMENTS
from v4_operator.observed.objects import Key, key_of
from v4_operator.reconcile import Decide, Reconciler

log = logging.getLogger(__name__)

_PARALLEL = 16  # V4Deployments that are reconciled at the same time
_GATHER_SECONDS = 0.1  # delay of a reconcile after a change of a child, since changes come in bursts
_DETECT_SECONDS = 300.0  # between discoveries of the API server's version and kinds


class Runtime:
    """Reconciles V4Deployments from `start` to `close`. `failed` gets the error of a part that ends by itself."""

    def __init__(
        self,
        config: OperatorConfig,
        api: KubeClient,
        discovery: Discovery,
        decide: Decide,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._config, self._api, self._discovery, self._failed = config, api, discovery, failed
        self._namespaces = config.namespaces or ("",)
        self._parents, self._children = Parents(), Children(self._child_changed)
        self._watches = Watches(api, self._namespaces, self._children, self._ended)
        self._fleets = Fleets()
        self._reconciler = Reconciler(
            api, discovery, self._parents, self._children, self._watches, self._fleets, _settings(config), decide
        )
        self._queue: WorkQueue[Key] = WorkQueue(self._reconciler.reconcile, _PARALLEL)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts all parts. The features must have been discovered."""
        DEPLOYMENTS.show(self._parents.items, self._children.of)
        self._watches.follow(self._discovery.features.children())
        for work in (self._queue.run(), self._resync(), self._detect()):
            self._tasks.append(self._spawn(work))

    async def close(self) -> None:
        """Cancels all parts, also in the middle of a write."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._watches.close()
        await self._fleets.close()

    def on_event(self, deleted: bool, obj: Json) -> None:
        """Takes a V4Deployment from an event of the server."""
        if deleted:
            self._parents.remove(obj)
            self._queue.add(key_of(obj))  # so that the reconciler forgets it
        elif self._parents.put(obj):
            self._queue.add(key_of(obj))

    def not_ready(self) -> str:
        """Why the caches are not complete yet; "" if they are."""
        missing = self._watches.missing()
        return f"not listed yet: {', '.join(missing)}; see the log" if missing else ""

    def _child_changed(self, key: Key) -> None:
        self._queue.add(key, _GATHER_SECONDS)

    async def _resync(self) -> None:
        """Periodically reconciles everything, and drops V4Deployments whose deletion was missed."""
        period = self._config.resync_seconds
        while True:
            await asyncio.sleep(period)
            try:
                await self._drop_deleted()
            except ApiError as error:
                log.warning("cannot list V4Deployments: %s", error)
            for key in self._parents.all():
                self._queue.add(key, random.uniform(0.0, period))

    async def _drop_deleted(self) -> None:
        before, uids = self._parents.all(), set[str]()
        resource = self._discovery.features.v4deployments
        for path in [resource.path(namespace) for namespace in self._namespaces] if resource else []:
            listed = await self._api.get(path, metadata_only=True)
            uids |= {item["metadata"]["uid"] for item in listed.get("items") or ()}
        self._parents.keep_only(before, uids)

    async def _detect(self) -> None:
        """Periodically repeats the discovery, to notice an upgrade of the API server."""
        while True:
            await asyncio.sleep(_DETECT_SECONDS * random.uniform(0.9, 1.1))
            before = self._discovery.features
            if not await self._discovery.try_refresh():
                continue
            after = self._discovery.features
            self._watches.follow(after.children())
            if after != before:
                log.info("the API server is now version %d.%d, with %d kinds", *after.version, len(after.kinds))
                for key in self._parents.all():
                    self._queue.add(key)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


def _settings(config: OperatorConfig) -> Settings:
    return Settings(
        worker_image=config.worker_image,
        router_image=config.router_image,
        pull_policy=config.pull_policy,
        pull_secrets=config.pull_secrets,
        common_labels=config.common_labels,
        operator_namespace=own_namespace(),
        operator_labels=config.operator_labels,
        scrape_from=config.scrape_from,
        log_format=config.log_format,
    )
