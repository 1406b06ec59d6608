"""A worker's monitoring port: /health, /ready and /metrics over HTTP, for kubelet and scrapers. Knows no engine.

Served from before the weights are read, so that a probe can tell a worker that loads from one that is dead.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from v4_core.errors import ConfigError


@dataclass
class Condition:
    """What the process says of itself; changed while it is served."""

    not_ready: str = "the model is being loaded"  # why no requests should come; empty = they may
    failed: str = ""  # why the process cannot go on; empty = it can


@asynccontextmanager
async def monitoring(condition: Condition, host: str, port: int) -> AsyncIterator[str]:
    """Serve within the context, which yields host:port. Raises ConfigError if the address cannot be had."""
    runner = web.AppRunner(_application(condition), access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another --monitoring-port or --host"
            ) from error
        yield f"{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _application(condition: Condition) -> web.Application:
    async def health(_: web.Request) -> web.Response:
        return _answer(condition.failed)

    async def ready(_: web.Request) -> web.Response:
        return _answer(condition.failed or condition.not_ready)

    application = web.Application()
    application.router.add_get("/health", health)
    application.router.add_get("/ready", ready)
    application.router.add_get("/metrics", _metrics)
    return application


def _answer(problem: str) -> web.Response:
    return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)


async def _metrics(_: web.Request) -> web.Response:
    return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})
