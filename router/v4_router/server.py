"""The router as a process: HTTP servers until SIGINT or SIGTERM, and a stop that leaves streams their time."""

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

# How long a router of a cluster takes requests after SIGTERM: others hear only by and by that it leaves.
_LEAVING_SECONDS = 5.0
_LAST_ANSWER_SECONDS = 1.0  # for what the monitoring port is asked at the end


class _Server(uvicorn.Server):
    """One of several in a process, which itself handles signals."""

    def __init__(self, app: ASGIApp, drain_seconds: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttp,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=logging.WARNING,  # else each of several tells when it begins and ends
                access_log=False,
                timeout_graceful_shutdown=math.ceil(drain_seconds),
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    def cut(self) -> None:
        """End the requests that still run: each is told."""
        for task in self.server_state.tasks:
            task.cancel()


def run(config: RouterConfig) -> None:
    """Serve until SIGINT or SIGTERM; a second one ends it at once. Raises ConfigError on a bad model, file or port."""
    with contextlib.ExitStack() as stack:
        router = Router(config, stack.enter_context(tracing("v4serve-router")))
        api = stack.enter_context(_listen(config.host, config.port, "--port"))
        monitoring = None
        if config.monitoring_port:
            monitoring = stack.enter_context(_listen(config.host, config.monitoring_port, "--monitoring-port"))
        signals.run(_Process(router).serve(api, monitoring), uvloop.new_event_loop)


class _Process:
    """From the first signal to the end."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()

    async def serve(self, api: socket.socket, monitoring: socket.socket | None) -> None:
        """Until a signal, and then until streams ended or their time did."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        router = self._router
        log.info("the API listens on %s", _named(api))
        if monitoring is not None:
            log.info("page, facts and metrics listen on %s", _named(monitoring))
        async with router.running():
            server = _Server(build_app(router), router.config.drain_seconds)
            serving = asyncio.create_task(server.serve([api]))
            watched = _Server(build_monitoring_app(router), _LAST_ANSWER_SECONDS)
            watching = asyncio.create_task(watched.serve([monitoring])) if monitoring is not None else None
            await _either(self._stop, serving)
            await self._leave(server, serving)
            watched.should_exit = True
            if watching is not None:
                await watching

    async def _leave(self, server: _Server, serving: asyncio.Task[None]) -> None:
        self._router.draining = True
        if self._router.config.deployment:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), _LEAVING_SECONDS)
        server.should_exit = True
        await _either(self._hurry, serving)
        server.cut()
        await serving

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()


def _named(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{f'[{host}]' if ':' in host else host}:{port}"


async def _either(event: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Until the event or the task's end."""
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
