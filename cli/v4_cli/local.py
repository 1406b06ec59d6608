"""`v4serve local`: a router, prefill and decode workers on this machine, as children of one supervisor.

Starts them, waits until a token went through all of them, reports the dead, stops the rest. A worker's death is
survived while another of its role runs. Which processes there are is topology.py's matter, how a process is held is
processes.py's.
"""

import asyncio
import errno
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from v4_cli.errors import USAGE, DeploymentError
from v4_cli.options import Checkpoint, ConfigFile, Device, Dtype, Format, LogFormatFlag
from v4_cli.processes import Child, describe_end, stop, until_signal
from v4_cli.program_name import program_name
from v4_cli.topology import (
    HOST,
    LocalConfig,
    Process,
    Role,
    lost_role,
    processes,
    scrape_config,
    served_name,
    threads_per_worker,
)
from v4_core.config import ModelConfig
from v4_core.errors import ConfigError, V4Error
from v4_core.held_ports import held_for, held_ports
from v4_core.logs import CLOCK, LogFormat, configure, relayed
from v4_core.settings import load

Command = Callable[[Process, Path], Sequence[str]]  # what starts a process, given its settings file
Log = Callable[[str, str], None]  # name of a process, or v4serve; line

STOP_SECONDS = 8.0  # from SIGTERM to SIGKILL; all is over within 10 s
_POLL_SECONDS = 0.1
_PROGRESS_SECONDS = 5.0


def own_command(process: Process, settings: Path) -> Sequence[str]:
    """This program's own sub-command for the role."""
    return [sys.executable, "-m", "v4_cli.main", process.role, "--config", str(settings)]


def log_to_stderr(name: str, line: str) -> None:
    """One line, behind the name of the process that wrote it, and the time where that process does not say it."""
    said = f"{time.strftime(CLOCK)} {line}" if name == "v4serve" else line
    print(f"{name:<10}| {said}", file=sys.stderr, flush=True)


def log_as_json(name: str, line: str) -> None:
    """The same as one JSON object."""
    print(relayed(name, line), file=sys.stderr, flush=True)


LOGS: Mapping[LogFormat, Log] = {"human": log_to_stderr, "json": log_as_json}


class LocalDeployment:
    """A running deployment, as an async context manager: ready when entered, every process gone when left.

    Entering raises ConfigError where the port is taken, and DeploymentError where the processes cannot be started or do
    not become ready.
    """

    def __init__(self, config: LocalConfig, *, log: Log = log_to_stderr, command: Command = own_command) -> None:
        self.config = config
        self.url = ""
        self.prometheus = Path()  # a configuration file for Prometheus, there as long as the deployment
        self._log = log
        self._command = command
        self._children: dict[Process, Child] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._broken = asyncio.Event()
        self._error: V4Error = DeploymentError("nothing ended")
        self._resources = ExitStack()  # files and ports

    async def __aenter__(self) -> "LocalDeployment":
        try:
            try:
                await self._start()
            except OSError as error:
                raise DeploymentError(f"the processes cannot be started: {error}") from error
            await self._until_ready()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def run(self) -> None:
        """Return never; raises DeploymentError once the router or the last worker of a role has ended,
        ConfigError if its settings or model were wrong."""
        await self._broken.wait()
        raise self._error

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name (prefill-0, router), of the dead too."""
        return {process.name: child.pid for process, child in self._children.items()}

    @property
    def addresses(self) -> dict[str, str]:
        """host:port by name."""
        return {process.name: f"{HOST}:{process.settings['port']}" for process in self._children}

    async def kill(self, role: Role, index: int = 0, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal one process and wait for its end."""
        self._child(role, index).send(number)
        await self._child(role, index).wait()

    def _child(self, role: Role, index: int) -> Child:
        return [child for process, child in self._children.items() if process.role == role][index]

    async def _start(self) -> None:
        workers = self.config.prefill + self.config.decode
        with _usable(self.config.port):  # so that none of the others is it
            held = self._resources.enter_context(held_ports(HOST, 2 * workers + 2))
        api, *ports = held
        started = processes(self.config, self.config.port or api, ports[:workers], ports[workers:])
        self.url = f"http://{HOST}:{started[-1].settings['port']}"
        folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="v4serve-")))
        threads = threads_per_worker(_cpus(), workers)
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ, **held_for(held), "PYTHONUNBUFFERED": "1"}
        self.prometheus = folder / "prometheus.yaml"
        self.prometheus.write_text(json.dumps(scrape_config(started), indent=2), encoding="utf-8")
        for process in started:
            settings = folder / f"{process.name}.yaml"
            settings.write_text(json.dumps(process.settings), encoding="utf-8")  # JSON is YAML, here and above
            child = await self._start_child(process.name, self._command(process, settings), environment)
            self._children[process] = child
            self._watchers.append(asyncio.create_task(self._watch(process, child)))

    async def _start_child(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        return await Child.start(name, command, environment, self._line_logger(name))

    def _line_logger(self, name: str) -> Callable[[str], None]:
        return lambda line: self._log(name, line)

    async def _watch(self, process: Process, child: Child) -> None:
        """Report an end that nobody asked for."""
        code = await child.wait()
        self._log("v4serve", f"{process.name} has ended ({describe_end(code)})")
        running = [other for other, one in self._children.items() if one.running]
        if role := lost_role(self._children, running):
            what = "the router" if role == "router" else f"the last {role} worker"
            kind = ConfigError if code == USAGE else DeploymentError
            self._error = kind(f"{what} has ended ({describe_end(code)}): see its last lines above")
            self._broken.set()

    async def _until_ready(self) -> None:
        started = shown = time.monotonic()
        self._log("v4serve", f"starting {', '.join(process.name for process in self._children)}")
        while not await _answers_ready(self.url):
            if self._broken.is_set():
                raise self._error
            now = time.monotonic()
            if now - started > self.config.start_timeout_seconds:
                raise DeploymentError(f"not ready after {self.config.start_timeout_seconds:g} s: see the lines above")
            if now - shown > _PROGRESS_SECONDS:
                shown = now
                self._log("v4serve", f"waiting for the first token, {now - started:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)
        self._log("v4serve", f"ready after {time.monotonic() - started:.1f} s")

    async def _stop(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await stop(list(self._children.values()), STOP_SECONDS)
        self._resources.close()


async def serve(config: LocalConfig, command: Command = own_command) -> None:
    """Serve until cancelled. Raises ConfigError or DeploymentError."""
    async with LocalDeployment(config, log=LOGS[config.log_format], command=command) as deployment:
        print(_greeting(deployment, served_name(config.model)), flush=True)
        await deployment.run()


def local(
    *,
    model: Checkpoint = None,
    prefill: Annotated[int | None, typer.Option(help="Prefill workers; 0: decode does all. (default: 1)")] = None,
    decode: Annotated[int | None, typer.Option(help="Decode workers. (default: 1)")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the API; 0: any free one. (default: 8000)")] = None,
    device: Device = None,
    dtype: Dtype = None,
    format: Format = None,  # noqa: A002
    log_format: LogFormatFlag = None,
    config: ConfigFile = None,
) -> None:
    """Serve a model from this machine: a router, prefill and decode workers, one address.

    Stops everything at Ctrl-C or SIGTERM. A worker's death is reported and survived while another of its role runs.
    """
    flags = {
        "model": model,
        "prefill": prefill,
        "decode": decode,
        "port": port,
        "device": device,
        "dtype": dtype,
        "format": format,
        "log_format": log_format,
    }
    settings = load(LocalConfig, config, flags)
    configure(settings.log_format)
    ModelConfig.from_path(settings.model)  # a wrong path is told here, not by every child
    asyncio.run(until_signal(serve(settings)))


def _greeting(deployment: LocalDeployment, name: str) -> str:
    url = deployment.url
    body = {"model": name, "messages": [{"role": "user", "content": "Tell me a story."}], "stream": True}
    return f"""v4serve answers at {url}
  watch it in a browser there, or in a terminal: {program_name()} top {url}
  give it something to do: {program_name()} load {url}
  let Prometheus see it: prometheus --config.file={deployment.prometheus}

  curl -N {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{json.dumps(body)}'
"""


async def _answers_ready(url: str) -> bool:
    """Whether the router says that a token went through a pair of workers."""
    port = int(url.rpartition(":")[2])
    try:
        async with asyncio.timeout(2.0):
            reader, writer = await asyncio.open_connection(HOST, port)
            with closing(writer):
                writer.write(f"GET /ready HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n".encode())
                status = await reader.readline()
    except OSError:  # it does not listen yet; a timeout is one too
        return False
    return status.split()[1:2] == [b"200"]


@contextmanager
def _usable(port: int) -> Iterator[None]:
    """Keep `port` bound within the context; the router binds it later. Raises ConfigError where another program has it,
    which is told so before anything starts."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((HOST, port))
        except OSError as error:
            reason = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise ConfigError(f"port {port} {reason}: choose another with --port, or 0 for any free one") from error
        yield


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
