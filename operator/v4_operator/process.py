"""The operator as a process: take the Lease, then let kopf run until a signal or a lost Lease ends it.

kopf watches V4Deployments, and ends in order when a signal comes. It writes nothing to the cluster: no finalizer, no
annotation, no progress, no Events, no peering.
"""

import asyncio
import logging
import os
import signal
import socket
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import kopf

from v4_core import signals
from v4_core.kubernetes import GROUP, MANAGER, PLURAL
from v4_kube.client import KubeClient, own_namespace
from v4_kube.errors import ApiError
from v4_operator import handlers
from v4_operator.config import OperatorConfig
from v4_operator.errors import LeadershipLost, WatchFailed
from v4_operator.health import HealthServer
from v4_operator.kube.discovery import Discovery
from v4_operator.kube.leader_election import LeaderElection
from v4_operator.metrics import LEADER, count_write
from v4_operator.reconcile import Decide
from v4_operator.runtime import Runtime

log = logging.getLogger(__name__)

_LOST_EXIT_CODE = 1
_DEFINITION_SECONDS = 2.0  # between looks for the custom resource definition
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(config: OperatorConfig, decide: Decide, kubeconfig: Path | None = None) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigError; ends the process at once where the Lease is lost."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    signals.run(_Process(config, decide).run(kubeconfig))


class _Process:
    def __init__(self, config: OperatorConfig, decide: Decide) -> None:
        self._config, self._decide = config, decide
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None
        self._waiting = ""  # for what, before the runtime is there
        self._election: LeaderElection | None = None
        self._runtime: Runtime | None = None

    async def run(self, kubeconfig: Path | None) -> None:
        api = await KubeClient.connect(MANAGER, kubeconfig, count_write)
        health = HealthServer(self._config.health_host, self._config.health_port, self._not_ready)
        try:
            log.info("health on %s", await health.start())
            self._handle_signals()
            await self._lead(api)
        finally:
            await health.close()
            await api.close()

    async def _lead(self, api: KubeClient) -> None:
        namespace = self._config.lease_namespace or own_namespace() or "default"
        identity = identity_of(namespace, own_namespace())
        election = self._election = LeaderElection(api, namespace, self._config.lease_name, identity)
        if not await self._unless_stopped(election.acquire()):
            return
        log.info("holding the Lease %s/%s as %s", namespace, self._config.lease_name, identity)
        api.guard = election.check
        LEADER.set(1)
        keeper = asyncio.create_task(election.keep())
        keeper.add_done_callback(_end_if_lost)
        try:
            await self._serve(api)
        finally:
            keeper.cancel()
            await _release(election)

    async def _serve(self, api: KubeClient) -> None:
        discovery = Discovery(api)
        if not await self._unless_stopped(self._definition(discovery)):
            return
        version = ".".join(map(str, discovery.features.version))
        log.info("serving %s of API server %s", ", ".join(self._config.namespaces) or "all namespaces", version)
        runtime = self._runtime = Runtime(self._config, api, discovery, self._decide, self._failed)
        watching = kopf.operator(
            registry=handlers.registry(api, runtime, self._stop),
            settings=handlers.settings(),
            standalone=True,
            clusterwide=self._config.all_namespaces,
            namespaces=self._config.namespaces,
            stop_flag=self._stop,
        )
        task = asyncio.create_task(watching)
        await asyncio.wait({task})
        self._handle_signals()  # kopf's own are good for one signal
        if self._failure is not None:
            raise self._failure
        if (error := task.exception()) is not None:
            raise WatchFailed(f"V4Deployments can no longer be watched: {error}") from error

    async def _definition(self, discovery: Discovery) -> None:
        """Wait for the custom resource definition."""
        while True:
            self._waiting = f"the cluster does not know {PLURAL}.{GROUP}: install the chart with crds.install=true"
            try:
                if (await discovery.refresh()).v4deployments is not None:
                    self._waiting = ""
                    return
            except ApiError as error:
                self._waiting = str(error)
            log.warning("%s", self._waiting)
            await asyncio.sleep(_DEFINITION_SECONDS)

    def _not_ready(self) -> str:
        """A replica that waits for the Lease of another one that lives is ready to take over."""
        if self._runtime is not None:
            return self._runtime.not_ready()
        return self._waiting or (self._election.problem if self._election else "")

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether `work` came to its end before a signal did."""
        working, stopped = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            return working.done()
        finally:
            working.cancel()
            stopped.cancel()

    def _handle_signals(self) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    def _failed(self, error: BaseException) -> None:
        self._failure = error
        self._stop.set()


def identity_of(lease_namespace: str, pod_namespace: str) -> str:
    """Of this process; `pod_namespace` is empty outside a cluster.

    A pod's name is its host name, and a container that is started again in it takes over from the former one.
    """
    host = socket.gethostname()
    if pod_namespace == lease_namespace:
        return host
    return f"{host}_{pod_namespace or uuid.uuid4().hex[:8]}"


def _end_if_lost(keeper: "asyncio.Task[None]") -> None:
    """Nothing may be written from here on: not even what an orderly end would write."""
    if keeper.cancelled():
        return
    error = keeper.exception()
    log.critical("ending at once: %s", error, exc_info=None if isinstance(error, LeadershipLost) else error)
    os._exit(_LOST_EXIT_CODE)


async def _release(election: LeaderElection) -> None:
    try:
        await election.release()
    except (ApiError, LeadershipLost) as error:
        log.warning("the Lease was not released, another replica waits until it is over: %s", error)
