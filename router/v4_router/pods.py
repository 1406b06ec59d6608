"""Workers as the pods of one V4Deployment: list, then watch, then list again. Never on a request's path.

While the API server is away, what it said last stays true. Every list is the whole truth again: a change that a watch
lost is made up for by the next one, minutes later at most.

Credentials that are refused are read again, since kubelet renews the token in the pod. The token of a ServiceAccount
that was deleted is refused for good, or until kubelet renews it within the hour, even if another one has its name by
now: that is told, and it takes a new pod.
"""

import asyncio
import json
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable
from http import HTTPStatus
from typing import Any

import aiohttp
import yaml
from kubernetes.aio import client, config

from v4_core.errors import ConfigError
from v4_core.kubernetes import DEPLOYMENT_LABEL
from v4_router.endpoints import WorkerEndpoint, of_pod

log = logging.getLogger(__name__)

_RESYNC_SECONDS = 300  # that a watch lives
_SILENCE_SECONDS = 150.0  # after which a watch is dead: the API server sends a bookmark every minute
_LIST_SECONDS = 30.0  # that a list may take
_PAUSE_SECONDS = (0.2, 10.0)  # first and longest between two lists
_STEADY_SECONDS = 10.0  # after which a watch was a good one
_TOLD_SECONDS = 15.0  # without a list, after which that is a trouble: an API server that restarts is back by then


class ApiError(Exception):
    """The API server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


_NO_ANSWER = (
    ApiError,
    ConfigError,
    client.ApiException,
    config.ConfigException,
    aiohttp.ClientError,
    OSError,
    ValueError,
)


class PodWatch:
    """Follows the pods with a deployment's label; `tell` hears of all their workers at every change."""

    def __init__(
        self, api: client.ApiClient, namespace: str, deployment: str, tell: Callable[[Iterable[WorkerEndpoint]], None]
    ) -> None:
        self._api = api
        self._namespace, self._selector = namespace, f"{DEPLOYMENT_LABEL}={deployment}"
        self._tell = tell
        self._pods: dict[str, tuple[WorkerEndpoint, ...]] = {}  # by uid
        self._failing_since: float | None = None  # by the loop's clock; None once all were listed
        self._error = ""  # that was logged last; empty once a watch told something
        self._refused = False  # the last try, for its credentials

    @classmethod
    async def connect(
        cls, namespace: str, deployment: str, tell: Callable[[Iterable[WorkerEndpoint]], None]
    ) -> "PodWatch":
        """With the credentials of this pod, or of the file that KUBECONFIG names. Raises ConfigError without either."""
        settings = client.Configuration()
        await _read_credentials(settings)
        return cls(client.ApiClient(settings), namespace, deployment, tell)

    def problem(self) -> str:
        """Why pods have not been seen for a while; empty if they are. Belongs to the loop that runs `run`."""
        since = self._failing_since
        if since is None or asyncio.get_running_loop().time() - since < _TOLD_SECONDS:
            return ""
        return self._error

    async def run(self) -> None:
        """Until cancelled; whatever the API server does, it is asked again."""
        loop = asyncio.get_running_loop()
        pause, longest = _PAUSE_SECONDS
        async with self._api as api:
            pods = client.CoreV1Api(api)
            while True:
                began = loop.time()
                try:
                    if self._refused:
                        await _read_credentials(api.configuration)
                    await self._follow(pods, await self._list(pods))
                except _NO_ANSWER as error:
                    self._failed(error, loop.time())
                pause = _PAUSE_SECONDS[0] if loop.time() - began > _STEADY_SECONDS else min(2 * pause, longest)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    def _failed(self, error: BaseException, now: float) -> None:
        self._refused = isinstance(error, ApiError) and error.status == HTTPStatus.UNAUTHORIZED
        said = f"the pods of namespace {self._namespace} cannot be read: {str(error) or type(error).__name__}"
        if said != self._error:
            log.warning("%s; known workers stay", said)
        self._error = said
        if self._failing_since is None:
            self._failing_since = now

    def _listed(self) -> None:
        if self._failing_since is not None:
            log.info("the pods of namespace %s are read again", self._namespace)
        self._failing_since, self._refused = None, False

    async def _list(self, pods: client.CoreV1Api) -> str:
        """All pods; the version of the list."""
        response = await pods.list_namespaced_pod_without_preload_content(
            self._namespace, label_selector=self._selector, _request_timeout=_LIST_SECONDS
        )
        async with response:
            await _check(response)
            found = await response.json()
        self._listed()
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
                self._error = ""
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


async def _read_credentials(settings: client.Configuration) -> None:
    """Fill in address and credentials. Raises ConfigError."""
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


async def _changes(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Events of a watch. Raises TimeoutError if it falls silent."""
    while True:
        async with asyncio.timeout(_SILENCE_SECONDS):
            line = await response.content.readline()
        if not line.endswith(b"\n"):  # the end, or a line that was cut
            return
        yield json.loads(line)


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status != HTTPStatus.OK:
        raise ApiError(response.status, _said(await response.text()))


def _said(body: str) -> str:
    """The message of a Status, which is what the API server sends, or the beginning of anything else."""
    try:
        message = json.loads(body).get("message")
    except (ValueError, AttributeError):
        message = None
    return str(message or body)[:300]
