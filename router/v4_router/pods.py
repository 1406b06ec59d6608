"""Finds workers as the pods of one V4Deployment, by listing and watching them. Not on the path of a request.

While the API server cannot be reached, the last known pods stay in use. Each stream of a watch ends after five minutes
and is followed by a new list, so an event that a watch lost is corrected within minutes.

If the pod's ServiceAccount was deleted and created again, the API server refuses the old token until the kubelet renews
it, which may take an hour. The error is reported meanwhile; a new pod gets a valid token at once.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence

from v4_core.errors import ConfigError
from v4_core.kubernetes import DEPLOYMENT_LABEL, Json
from v4_kube.client import KubeClient, Resource, own_namespace
from v4_kube.errors import ApiError
from v4_kube.watch import Watch
from v4_router.endpoints import WorkerEndpoint, of_pod

log = logging.getLogger(__name__)

_PODS = Resource("v1", "Pod", "pods")
_REPORTED_SECONDS = 15.0  # failures for this long are a problem; an API server that restarts is back sooner
_NAME_WORKERS = "give worker addresses as --prefill and --decode instead of --deployment"

Listener = Callable[[Iterable[WorkerEndpoint]], None]


class PodWatch:
    """Follows the pods with a deployment's label, and calls `on_change` with all their workers at every change."""

    def __init__(self, api: KubeClient, namespace: str, deployment: str, on_change: Listener) -> None:
        self._api, self._namespace, self._on_change = api, namespace, on_change
        self._watch = Watch(api, _PODS.path(namespace), f"{DEPLOYMENT_LABEL}={deployment}", self, relist=True)
        self._pods: dict[str, tuple[WorkerEndpoint, ...]] = {}  # by pod uid
        self._failing_since: float | None = None  # on the event loop's clock; None after a successful list
        self._error = ""  # the last error

    @classmethod
    async def connect(cls, namespace: str, deployment: str, on_change: Listener) -> "PodWatch":
        """Returns a watch with this pod's credentials, or with those of the file in KUBECONFIG.

        Raises ConfigError if there are neither.
        """
        if not os.environ.get("KUBECONFIG") and not own_namespace():
            raise ConfigError(
                "the Kubernetes API cannot be reached: run in a pod with a service account, set KUBECONFIG, or "
                + _NAME_WORKERS
            )
        try:
            api = await KubeClient.connect("v4serve-router")
        except ConfigError as error:
            raise ConfigError(f"{error}; or {_NAME_WORKERS}") from error
        return cls(api, namespace, deployment, on_change)

    def problem(self) -> str:
        """Returns why the pods have not been listed for a while, or "". Call it on the event loop that runs `run`."""
        since = self._failing_since
        if since is None or asyncio.get_running_loop().time() - since < _REPORTED_SECONDS:
            return ""
        return self._error

    async def run(self) -> None:
        """Lists and watches until cancelled; tries again after every error of the API server."""
        try:
            await self._watch.run()
        finally:
            await self._api.close()

    def replace(self, objects: Sequence[Json], version: str) -> None:
        """Takes a complete list of the pods. A `Sink` of v4_kube.watch, as the next three methods are."""
        if self._failing_since is not None:
            log.info("the pods of namespace %s can be read again", self._namespace)
        self._failing_since = None
        self._pods = {pod["metadata"]["uid"]: of_pod(pod) for pod in objects}
        self._report()

    def put(self, obj: Json) -> None:
        """Takes a pod that was created or changed."""
        self._pods[obj["metadata"]["uid"]] = of_pod(obj)
        self._report()

    def remove(self, obj: Json) -> None:
        """Takes a pod that was deleted."""
        self._pods.pop(obj["metadata"]["uid"], None)
        self._report()

    def failed(self, error: ApiError, failures: int) -> None:
        """Takes an error, and logs it unless it repeats the error before; the known workers stay."""
        reason = f"HTTP {error.status}: {error.words}" if error.status else error.words
        message = f"the pods of namespace {self._namespace} cannot be read: {reason}"
        if failures == 1 or message != self._error:
            log.warning("%s; trying again, and keeping the known workers", message)
        self._error = message
        if self._failing_since is None:
            self._failing_since = asyncio.get_running_loop().time()

    def _report(self) -> None:
        self._on_change(endpoint for endpoints in self._pods.values() for endpoint in endpoints)
