"""A worker's monitoring port: /health, /ready and /metrics over HTTP, for kubelet and scrapers. Knows no engine.

The port is served before the weights are read, so that a probe can distinguish a loading worker from a dead one.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from v4_core.errors import ConfigError
from v4_core.held_ports import is_held
from v4_worker.metrics import WorkerMetrics


@asynccontextmanager
async def monitoring(metrics: WorkerMetrics, host: str, port: int) -> AsyncIterator[str]:
    """Serve within the context, which yields host:port. Raises ConfigError if the address cannot be bound."""
    runner = web.AppRunner(_application(metrics), access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, reuse_port=is_held(port)).start()
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another --monitoring-port or --host"
            ) from error
        yield f"{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _application(metrics: WorkerMetrics) -> web.Application:
    async def health(_: web.Request) -> web.Response:
        return _answer(metrics.condition.failed)

    async def ready(_: web.Request) -> web.Response:
        return _answer(metrics.condition.not_ready)

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.router.add_get("/health", health)
    application.router.add_get("/ready", ready)
    application.router.add_get("/metrics", scrape)
    return application


def _answer(problem: str) -> web.Response:
    return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)
