"""Workers as the pods of one V4Deployment: list, then watch, then list again. Never on a request's path.

While the API server is away, what it said last stays true. Every list is the whole truth again: a change that a watch
lost is made up for by the next one, minutes later at most.
"""

import asyncio
import json
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import aiohttp
import yaml
from kubernetes.aio import client, config

from v4_core.errors import ConfigError
from v4_core.kubernetes import DEPLOYMENT_LABEL
from v4_router.endpoints import Endpoint, of_pod

log = logging.getLogger(__name__)

_RESYNC_SECONDS = 300  # that a watch lives
_SILENCE_SECONDS = 150.0  # after which a watch is dead: the API server sends a bookmark every minute
_LIST_SECONDS = 30.0  # that a list may take
_PAUSE_SECONDS = (0.2, 10.0)  # first and longest between two lists
_STEADY_SECONDS = 10.0  # after which a watch was a good one


class ApiError(Exception):
    """The API server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")


_NO_ANSWER = (ApiError, client.ApiException, config.ConfigException, aiohttp.ClientError, OSError, ValueError)


class PodWatch:
    """Follows the pods with a deployment's label; `tell` hears of all their workers at every change."""

    def __init__(
        self, api: client.ApiClient, namespace: str, deployment: str, tell: Callable[[Iterable[Endpoint]], None]
    ) -> None:
        self._api = api
        self._namespace, self._selector = namespace, f"{DEPLOYMENT_LABEL}={deployment}"
        self._tell = tell
        self._pods: dict[str, tuple[Endpoint, ...]] = {}  # by uid

    @classmethod
    async def connect(cls, namespace: str, deployment: str, tell: Callable[[Iterable[Endpoint]], None]) -> "PodWatch":
        """With the credentials of this pod, or of the file that KUBECONFIG names. Raises ConfigError without either."""
        settings = client.Configuration()
        try:
            if file := os.environ.get("KUBECONFIG"):
                await config.load_kube_config(config_file=file, client_configuration=settings)
            else:
                config.load_incluster_config(client_configuration=settings)
        except (config.ConfigException, OSError, yaml.YAMLError) as error:
            reason = str(error).rstrip(".")
            raise ConfigError(
                f"no way to the Kubernetes API ({reason}): run in a pod with a service account, set KUBECONFIG, or "
                "name workers by --prefill and --decode"
            ) from error
        return cls(client.ApiClient(settings), namespace, deployment, tell)

    async def run(self) -> None:
        """Until cancelled; whatever the API server does, it is asked again."""
        loop = asyncio.get_running_loop()
        pause, longest = _PAUSE_SECONDS
        async with self._api as api:
            pods = client.CoreV1Api(api)
            while True:
                began = loop.time()
                try:
                    await self._follow(pods, await self._list(pods))
                except _NO_ANSWER as error:
                    log.warning(
                        "the pods cannot be watched, known workers stay: %s", str(error) or type(error).__name__
                    )
                pause = _PAUSE_SECONDS[0] if loop.time() - began > _STEADY_SECONDS else min(2 * pause, longest)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _list(self, pods: client.CoreV1Api) -> str:
        """All pods; the version of the list."""
        response = await pods.list_namespaced_pod_without_preload_content(
            self._namespace, label_selector=self._selector, _request_timeout=_LIST_SECONDS
        )
        async with response:
            await _check(response)
            found = await response.json()
        self._pods = {pod["metadata"]["uid"]: of_pod(pod) for pod in found["items"]}
        self._report()
        version: str = found["metadata"]["resourceVersion"]
        return version

    async def _follow(self, pods: client.CoreV1Api, version: str) -> None:
        """Changes since a version, until the server ends them. Raises ApiError if it knows the version no more."""
        response = await pods.list_namespaced_pod_without_preload_content(
            self._namespace,
            label_selector=self._selector,
            watch=True,
            allow_watch_bookmarks=True,
            resource_version=version,
            timeout_seconds=_RESYNC_SECONDS,
            _request_timeout=_RESYNC_SECONDS + _LIST_SECONDS,
        )
        async with response:
            await _check(response)
            async for change in _changes(response):
                kind, pod = change["type"], change["object"]
                if kind == "ERROR":
                    raise ApiError(pod.get("code", 500), pod.get("message", "the watch failed"))
                if kind == "BOOKMARK":
                    continue
                uid = pod["metadata"]["uid"]
                if kind == "DELETED":
                    self._pods.pop(uid, None)
                else:
                    self._pods[uid] = of_pod(pod)
                self._report()

    def _report(self) -> None:
        self._tell(endpoint for endpoints in self._pods.values() for endpoint in endpoints)


async def _changes(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Events of a watch. Raises TimeoutError if it falls silent."""
    while True:
        async with asyncio.timeout(_SILENCE_SECONDS):
            line = await response.content.readline()
        if not line.endswith(b"\n"):  # the end, or a line that was cut
            return
        yield json.loads(line)


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        raise ApiError(response.status, (await response.text())[:300])
