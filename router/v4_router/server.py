"""The router's process: serves HTTP until SIGINT or SIGTERM, then lets running streams finish for a bounded time."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
from collections.abc import Iterator

import uvicorn
import uvloop
from starlette.types import ASGIApp

from v4_core import signals
from v4_core.errors import ConfigError
from v4_core.held_ports import is_held
from v4_core.tracing import tracing
from v4_router.app import build_app, build_monitoring_app
from v4_router.config import RouterConfig
from v4_router.http_protocol import BoundedHttp
from v4_router.router import Router

log = logging.getLogger(__name__)

# How long a router in Kubernetes accepts requests after SIGTERM: its removal from the Service takes time to spread.
_LEAVING_SECONDS = 5.0
_MONITORING_DRAIN_SECONDS = 1.0  # for running requests of the monitoring port


class _Server(uvicorn.Server):
    """One of the process's HTTP servers. Signals are handled by the process."""

    def __init__(self, app: ASGIApp, drain_seconds: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttp,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=logging.WARNING,  # at INFO each server would log its own start and stop
                access_log=False,
                timeout_graceful_shutdown=math.ceil(drain_seconds),
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replaces uvicorn's signal handlers by none."""
        yield

    def cancel_requests(self) -> None:
        """Cancels the requests that still run; each sends its client an error."""
        for task in self.server_state.tasks:
            task.cancel()


def run(config: RouterConfig) -> None:
    """Serves until SIGINT or SIGTERM; a second signal skips the drain.

    Raises ConfigError if the model, a file or a port cannot be used.
    """
    with contextlib.ExitStack() as stack:
        router = Router(config, stack.enter_context(tracing("v4serve-router")))
        api = stack.enter_context(_listen(config.host, config.port, "--port"))
        monitoring = None
        if config.monitoring_port:
            monitoring = stack.enter_context(_listen(config.host, config.monitoring_port, "--monitoring-port"))
        signals.run(_Process(router).serve(api, monitoring), uvloop.new_event_loop)


class _Process:
    """Runs the servers and handles signals."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()

    async def serve(self, api: socket.socket, monitoring: socket.socket | None) -> None:
        """Serves until a signal, and then until the streams have ended or the drain time is over."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        router = self._router
        log.info("the API listens on %s", _address(api))
        if monitoring is not None:
            log.info("the page, /facts and /metrics listen on %s", _address(monitoring))
        async with router.running():
            server = _Server(build_app(router), router.config.drain_seconds)
            serving = asyncio.create_task(server.serve([api]))
            monitor = _Server(build_monitoring_app(router), _MONITORING_DRAIN_SECONDS)
            monitoring_task = asyncio.create_task(monitor.serve([monitoring])) if monitoring is not None else None
            await _either(self._stop, serving)
            await self._drain(server, serving)
            monitor.should_exit = True
            if monitoring_task is not None:
                await monitoring_task

    async def _drain(self, server: _Server, serving: asyncio.Task[None]) -> None:
        self._router.draining = True
        if self._router.config.deployment:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), _LEAVING_SECONDS)
        server.should_exit = True
        await _either(self._hurry, serving)
        server.cancel_requests()
        await serving

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{f'[{host}]' if ':' in host else host}:{port}"


async def _either(event: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Waits until the event is set or the task has ended."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait((waiting, task), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def _listen(host: str, port: int, flag: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, is_held(port))
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another {flag} or --host"
        ) from error
    return listener
