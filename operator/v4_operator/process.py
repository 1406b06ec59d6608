"""The process of the operator: waits for leadership, then runs kopf until a signal arrives or leadership is lost.

kopf watches V4Deployments and stops in order on a signal. It writes nothing to the cluster: no finalizers, annotations,
progress, Events or peering objects.
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
_DEFINITION_SECONDS = 2.0  # between checks for the custom resource definition
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(config: OperatorConfig, decide: Decide, kubeconfig: Path | None = None) -> None:
    """Runs until SIGINT or SIGTERM. Raises ConfigError. Exits the process at once if leadership is lost."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    signals.run(_Process(config, decide).run(kubeconfig))


class _Process:
    def __init__(self, config: OperatorConfig, decide: Decide) -> None:
        self._config, self._decide = config, decide
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None
        self._waiting = ""  # what the process waits for before the runtime starts
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
        log.info("leading as %s, by the Lease %s/%s", identity, namespace, self._config.lease_name)
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
        if not await self._unless_stopped(self._wait_for_definition(discovery)):
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
        self._handle_signals()  # kopf's handlers are removed after one signal
        if self._failure is not None:
            raise self._failure
        if (error := task.exception()) is not None:
            raise WatchFailed(f"V4Deployments can no longer be watched: {error}") from error

    async def _wait_for_definition(self, discovery: Discovery) -> None:
        """Waits until the custom resource definition exists."""
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
        """Why this replica is not ready, or "". A replica that waits while another one leads is ready to take over."""
        if self._runtime is not None:
            return self._runtime.not_ready()
        return self._waiting or (self._election.problem if self._election else "")

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Runs `work` until it ends or a signal arrives. Returns whether it ended."""
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
    """Returns the identity of this process in the leader election; `pod_namespace` is empty outside a cluster.

    In the Lease's namespace it is the host name, which is the pod's name, so that a container that restarts in the same
    pod takes over from the former one at once.
    """
    host = socket.gethostname()
    if pod_namespace == lease_namespace:
        return host
    return f"{host}_{pod_namespace or uuid.uuid4().hex[:8]}"


def _end_if_lost(keeper: "asyncio.Task[None]") -> None:
    """Exits at once if leadership is lost: an orderly shutdown would still write to the cluster."""
    if keeper.cancelled():
        return
    error = keeper.exception()
    log.critical("ending at once: %s", error, exc_info=None if isinstance(error, LeadershipLost) else error)
    os._exit(_LOST_EXIT_CODE)


async def _release(election: LeaderElection) -> None:
    try:
        await election.release()
    except (ApiError, LeadershipLost) as error:
        log.warning("the Lease was not released, so another replica leads only after its duration: %s", error)
