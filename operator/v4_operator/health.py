"""The operator's HTTP server: /healthz for liveness, /readyz for readiness, and /metrics."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from v4_core.errors import ConfigError
from v4_core.held_ports import is_held
from v4_operator.metrics import REGISTRY


class HealthServer:
    """Serves from `start` to `close`. `not_ready` returns why the replica is not ready, or ""."""

    def __init__(self, host: str, port: int, not_ready: Callable[[], str]) -> None:
        self._host, self._port, self._not_ready = host, port, not_ready
        app = web.Application()
        routes = {"/healthz": self._health, "/readyz": self._ready, "/metrics": self._metrics}
        app.add_routes([web.get(path, handler) for path, handler in routes.items()])
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)

    async def start(self) -> str:
        """Starts to listen, and returns the address. Raises ConfigError if the port cannot be bound."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port, reuse_port=is_held(self._port)).start()
        except OSError as error:
            where = f"{self._host}:{self._port}"
            await self._runner.cleanup()
            raise ConfigError(f"cannot listen on {where}: {error.strerror}; choose another --health-port") from error
        host, port = self._runner.addresses[0][:2]
        return f"{host}:{port}"

    async def close(self) -> None:
        """Stops listening."""
        await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        reason = self._not_ready()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})
