"""A worker process: loading, gRPC server with health, readiness, drain on SIGTERM. `run` blocks until it has ended.

The worker is ready (health SERVING, /ready on the monitoring port) from the time when the weights are loaded and a
token was generated until a drain begins.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import torch

from v4_core import signals
from v4_core.errors import ConfigError
from v4_core.held_ports import is_held
from v4_core.sampling import Sampling
from v4_core.token import TokenFile
from v4_core.tracing import Tracing, tracing
from v4_engine.counts import Counts
from v4_engine.loading import Loaded, load_engine
from v4_engine.sequence import Request
from v4_kvtransfer.heap import keep_large_buffers
from v4_worker.config import WorkerConfig
from v4_worker.drain import drain
from v4_worker.errors import Stopped, WorkerError
from v4_worker.metrics import WorkerMetrics
from v4_worker.monitoring import monitoring
from v4_worker.server import WorkerServer
from v4_worker.worker import LegKinds, Worker

log = logging.getLogger("v4serve.worker")

_STOP_SECONDS = 2.0
_LARGE = 1 << 30  # bytes of weights


def run(config: WorkerConfig, role: str, kinds: LegKinds) -> None:
    """Run one worker until a signal or a fatal error ends it. Raises ConfigError, WorkerError."""
    with tracing(f"v4serve-{role}") as spans:
        signals.run(_Process(config, role, kinds, spans).run())


class _Process:
    def __init__(self, config: WorkerConfig, role: str, kinds: LegKinds, spans: Tracing | None = None) -> None:
        self._config, self._role, self._kinds, self._tracing = config, role, kinds, spans
        self._token = None if config.token_file is None else TokenFile(config.token_file)
        self._metrics = WorkerMetrics()
        self._condition = self._metrics.condition
        self._signals = 0
        self._stop = asyncio.Event()
        self._fatal: BaseException | None = None

    async def run(self) -> None:
        keep_large_buffers()
        config = self._config
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        if config.threads:
            torch.set_num_threads(config.threads)
        _check_port(config)
        async with self._monitoring():
            try:
                loaded = await asyncio.to_thread(self._load)
            except Stopped as stopped:
                log.info("%s", stopped)
                return
            await self._serve(loaded)
        if self._fatal is not None:
            raise WorkerError("the engine failed and its state cannot be trusted: see the log above") from self._fatal

    @asynccontextmanager
    async def _monitoring(self) -> AsyncIterator[None]:
        if not self._config.monitoring_port:
            yield
            return
        async with monitoring(self._metrics, self._config.host, self._config.monitoring_port):
            yield

    async def _serve(self, loaded: Loaded) -> None:
        config, metrics = self._config, self._metrics
        worker = Worker(config, self._role, loaded, self._kinds, metrics, self._failed, self._token, self._tracing)
        server = await WorkerServer.start(worker, config.host, config.port)
        self._condition.become("ready")
        log.info("%s worker ready on %s, fingerprint %s", self._role, server.address, worker.context.fingerprint)
        await self._stop.wait()
        self._condition.become("draining")
        await server.not_serving()
        await drain(worker, config.drain_seconds, lambda: self._signals > 1 or self._fatal is not None)
        await server.stop(_STOP_SECONDS)

    def _load(self) -> Loaded:
        config = self._config
        # On "auto" as well: a cache in GPU memory cannot be transferred yet.
        options = replace(config.engine, compute=replace(config.engine.compute, device="cpu"))
        loaded = load_engine(config.model, options, _Progress(config.model.name, self._check_stop))
        _warm_up(loaded, self._check_stop)
        return loaded

    def _check_stop(self) -> None:
        """Called by the loading thread. Raises Stopped if the process was told to stop."""
        if self._stop.is_set():
            raise Stopped("stopped by a signal while the model was being loaded")

    def _signalled(self) -> None:
        self._signals += 1
        self._stop.set()

    def _failed(self, error: BaseException) -> None:
        log.critical("the engine failed: this worker stops", exc_info=error)
        self._fatal = error
        self._condition.become("failed")
        self._stop.set()


class _Progress:
    """Logs the progress of loading: every tenth of large checkpoints, and the end of all."""

    def __init__(self, name: str, check_stop: Callable[[], None]) -> None:
        self._name, self._check_stop, self._shown = name, check_stop, -1

    def __call__(self, done: int, total: int) -> None:
        self._check_stop()
        tenth = 10 * done // max(total, 1)
        if tenth > self._shown and (total > _LARGE or tenth == 10):
            self._shown = tenth
            log.info("loading %s: %d %% of %.1f MB", self._name, 10 * tenth, total / 1e6)


def _check_port(config: WorkerConfig) -> None:
    """Raise ConfigError if the port is in use, before minutes are spent on reading the weights."""
    with socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, is_held(config.port))
        try:
            probe.bind((config.host, config.port))
        except OSError as error:
            where = f"{config.host}:{config.port}"
            raise ConfigError(f"cannot listen on {where}: {error.strerror}; choose another --port or --host") from error


def _warm_up(loaded: Loaded, check_stop: Callable[[], None]) -> None:
    """Generate a token after a prompt that exercises every path, including the indexer's selection.

    A worker that cannot do this must not become ready. Kernels that are compiled at first use are compiled here.
    """
    log.info("warming up (the first start on a machine compiles operators)")
    engine = loaded.engine
    length = min(4 * (engine.config.index_topk + 2), engine.scheduler.config.max_model_len - 2)
    prompt = [engine.config.bos_token_id] * max(1, length)
    request = Request(("warm-up", 0), "whole", prompt, max_tokens=2, sampling=Sampling(temperature=0))
    engine.submit(request)
    while engine.busy:
        check_stop()
        engine.step()
    engine.pool.counts = Counts()  # the warm-up is not a request
    check_stop()
