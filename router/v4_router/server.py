"""The router as a process: one HTTP server until SIGINT or SIGTERM."""

import logging
import signal
import socket

import uvicorn

from v4_core.errors import ConfigError
from v4_router.app import build_app
from v4_router.config import RouterConfig
from v4_router.router import Router

_GRACE_SECONDS = 2  # for running streams; then they are cancelled, on the workers too


def run(config: RouterConfig) -> None:
    """Serve until SIGINT or SIGTERM, then return within a few seconds. Raises ConfigError on a bad model or port."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    app = build_app(Router(config))
    listener = _listen(config)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
    )
    # The server raises the signal again once it has stopped: then it has done its work.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listen(config: RouterConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        where = f"{config.host}:{config.port}"
        raise ConfigError(f"cannot listen on {where}: {error.strerror}; choose another --port or --host") from error
    return listener
