"""Finds workers as the pods of one V4Deployment, by listing and watching them. Not on the path of a request.

While the API server cannot be reached, the last known pods stay in use. Each watch ends after five minutes and is
followed by a new list, so an event that a watch lost is corrected within minutes.

If the API server refuses the credentials, they are read again, since the kubelet renews the token in the pod. If the
pod's ServiceAccount was deleted and created again, the old token is refused until the kubelet renews it, which may take
an hour. The error is reported meanwhile; a new pod gets a valid token at once.
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

_RESYNC_SECONDS = 300  # length of a watch, after which the pods are listed again
_SILENCE_SECONDS = 150.0  # a watch without any event for this long is dead: a bookmark is sent every minute
_LIST_SECONDS = 30.0  # timeout of a list
_PAUSE_SECONDS = (0.2, 10.0)  # first and longest back-off between two lists
_STEADY_SECONDS = 10.0  # the back-off starts again from its first value after a watch that lasted this long
_REPORTED_SECONDS = 15.0  # failures for this long are a problem; an API server that restarts is back sooner

Listener = Callable[[Iterable[WorkerEndpoint]], None]


class ApiError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


_RETRIED = (
    ApiError,
    ConfigError,
    client.ApiException,
    config.ConfigException,
    aiohttp.ClientError,
    OSError,
    ValueError,
)


class PodWatch:
    """Follows the pods with a deployment's label, and calls `on_change` with all their workers at every change."""

    def __init__(self, api: client.ApiClient, namespace: str, deployment: str, on_change: Listener) -> None:
        self._api = api
        self._namespace, self._selector = namespace, f"{DEPLOYMENT_LABEL}={deployment}"
        self._on_change = on_change
        self._pods: dict[str, tuple[WorkerEndpoint, ...]] = {}  # by pod uid
        self._failing_since: float | None = None  # on the event loop's clock; None after a successful list
        self._error = ""  # the last error that was logged; empty after an event of a watch
        self._refused = False  # whether the API server refused the credentials at the last attempt

    @classmethod
    async def connect(cls, namespace: str, deployment: str, on_change: Listener) -> "PodWatch":
        """Returns a watch with this pod's credentials, or with those of the file in KUBECONFIG.

        Raises ConfigError if there are neither.
        """
        settings = client.Configuration()
        await _read_credentials(settings)
        return cls(client.ApiClient(settings), namespace, deployment, on_change)

    def problem(self) -> str:
        """Returns why the pods have not been listed for a while, or "". Call it on the event loop that runs `run`."""
        since = self._failing_since
        if since is None or asyncio.get_running_loop().time() - since < _REPORTED_SECONDS:
            return ""
        return self._error

    async def run(self) -> None:
        """Lists and watches until cancelled; tries again after every error of the API server."""
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
                except _RETRIED as error:
                    self._failed(error, loop.time())
                pause = _PAUSE_SECONDS[0] if loop.time() - began > _STEADY_SECONDS else min(2 * pause, longest)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    def _failed(self, error: BaseException, now: float) -> None:
        self._refused = isinstance(error, ApiError) and error.status == HTTPStatus.UNAUTHORIZED
        message = f"the pods of namespace {self._namespace} cannot be read: {str(error) or type(error).__name__}"
        if message != self._error:
            log.warning("%s; trying again, and keeping the known workers", message)
        self._error = message
        if self._failing_since is None:
            self._failing_since = now

    def _listed(self) -> None:
        if self._failing_since is not None:
            log.info("the pods of namespace %s can be read again", self._namespace)
        self._failing_since, self._refused = None, False

    async def _list(self, pods: client.CoreV1Api) -> str:
        """Lists all pods, and returns the resourceVersion of the list."""
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
        """Applies the changes since a resourceVersion until the server ends the watch.

        Raises ApiError if the server no longer has that version.
        """
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
        self._on_change(endpoint for endpoints in self._pods.values() for endpoint in endpoints)


async def _read_credentials(settings: client.Configuration) -> None:
    """Fills in the API server's address and the credentials. Raises ConfigError if there are none."""
    try:
        if file := os.environ.get("KUBECONFIG"):
            await config.load_kube_config(config_file=file, client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)
    except (config.ConfigException, OSError, yaml.YAMLError) as error:
        reason = str(error).rstrip(".")
        raise ConfigError(
            f"the Kubernetes API cannot be reached ({reason}): run in a pod with a service account, set KUBECONFIG, "
            "or give worker addresses as --prefill and --decode instead of --deployment"
        ) from error


async def _changes(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yields the events of a watch. Raises TimeoutError if none arrives for _SILENCE_SECONDS."""
    while True:
        async with asyncio.timeout(_SILENCE_SECONDS):
            line = await response.content.readline()
        if not line.endswith(b"\n"):  # the end of the stream, or an incomplete line
            return
        yield json.loads(line)


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status != HTTPStatus.OK:
        raise ApiError(response.status, _message(await response.text()))


def _message(body: str) -> str:
    """Returns the message of a Kubernetes Status, or the beginning of a body that is not a Status."""
    try:
        message = json.loads(body).get("message")
    except (ValueError, AttributeError):
        message = None
    return str(message or body)[:300]
