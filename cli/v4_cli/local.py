"""`v4serve local`: runs a router, prefill and decode workers on this machine, as children of one supervisor.

The supervisor starts the processes, waits until a token has gone through router, prefill and decode, reports processes
that end, and stops the others. The deployment survives the death of a worker while another one of its role runs.
topology.py decides which processes there are, and processes.py runs a process.
"""

import asyncio
import errno
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from v4_cli.errors import USAGE, DeploymentError, needs
from v4_cli.options import Checkpoint, command
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

if TYPE_CHECKING:
    import httpx

Command = Callable[[Process, Path], Sequence[str]]  # returns the command that runs a process with a settings file
Log = Callable[[str, str], None]  # takes the name of a process, or v4serve, and a line

STOP_SECONDS = 8.0  # from SIGTERM to SIGKILL, so that everything has ended within 10 s
_POLL_SECONDS = 0.1
_PROGRESS_SECONDS = 5.0
_READY_TIMEOUT_SECONDS = 2.0  # of one request to /ready


def own_command(process: Process, settings: Path) -> Sequence[str]:
    """Returns this program's own sub-command for the role."""
    return [sys.executable, "-m", "v4_cli.main", process.role, "--config", str(settings)]


def log_to_stderr(name: str, line: str) -> None:
    """Logs a line after the name of its process; adds the time to the supervisor's own lines, which have none."""
    text = f"{time.strftime(CLOCK)} {line}" if name == "v4serve" else line
    print(f"{name:<10}| {text}", file=sys.stderr, flush=True)


def log_as_json(name: str, line: str) -> None:
    """Logs a line as one JSON object."""
    print(relayed(name, line), file=sys.stderr, flush=True)


LOGS: Mapping[LogFormat, Log] = {"human": log_to_stderr, "json": log_as_json}


class LocalDeployment:
    """A running deployment, as an async context manager: ready after the entry, all processes ended after the exit.

    The entry raises ConfigError if the port is taken, and DeploymentError if the processes cannot be started or do not
    become ready.
    """

    def __init__(self, config: LocalConfig, *, log: Log = log_to_stderr, command: Command = own_command) -> None:
        self.config = config
        self.url = ""
        self.prometheus = Path()  # a configuration file for Prometheus, deleted when the deployment ends
        self._log = log
        self._command = command
        self._children: dict[Process, Child] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._broken = asyncio.Event()
        self._error: V4Error = DeploymentError("no process has ended")  # set before `_broken` is
        self._resources = ExitStack()  # files and reserved ports

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
        """Waits until the deployment cannot serve, because the router or the last worker of a role has ended.

        Raises ConfigError if the process ended because its settings or model were wrong, else DeploymentError.
        """
        await self._broken.wait()
        raise self._error

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name, such as prefill-0 or router, including processes that have ended."""
        return {process.name: child.pid for process, child in self._children.items()}

    @property
    def addresses(self) -> dict[str, str]:
        """Addresses, host:port, by name."""
        return {process.name: f"{HOST}:{process.settings['port']}" for process in self._children}

    async def kill(self, role: Role, index: int = 0, number: signal.Signals = signal.SIGKILL) -> None:
        """Signals one process, and waits until it has ended."""
        self._child(role, index).send(number)
        await self._child(role, index).wait()

    def _child(self, role: Role, index: int) -> Child:
        return [child for process, child in self._children.items() if process.role == role][index]

    async def _start(self) -> None:
        workers = self.config.prefill + self.config.decode
        with _reserved(self.config.port):  # so that it is not among the ports reserved for the other processes
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
        """Reports the end of a process, and whether the deployment can still serve."""
        code = await child.wait()
        self._log("v4serve", f"{process.name} has ended ({describe_end(code)})")
        running = [other for other, one in self._children.items() if one.running]
        if role := lost_role(self._children, running):
            what = "the router" if role == "router" else f"the last {role} worker"
            kind = ConfigError if code == USAGE else DeploymentError
            self._error = kind(f"{what} has ended ({describe_end(code)}): see its last log lines above")
            self._broken.set()

    async def _until_ready(self) -> None:
        import httpx  # noqa: PLC0415

        logging.getLogger("httpx").setLevel(logging.WARNING)  # at INFO it would log every poll
        started = logged = time.monotonic()
        self._log("v4serve", f"starting {', '.join(process.name for process in self._children)}")
        async with httpx.AsyncClient(base_url=self.url, timeout=_READY_TIMEOUT_SECONDS, trust_env=False) as client:
            while not await _is_ready(client):
                if self._broken.is_set():
                    raise self._error
                now = time.monotonic()
                if now - started > self.config.start_timeout_seconds:
                    raise DeploymentError(
                        f"not ready after {self.config.start_timeout_seconds:g} s: see the log lines above"
                    )
                if now - logged > _PROGRESS_SECONDS:
                    logged = now
                    self._log("v4serve", f"waiting for the first token, {now - started:.0f} s")
                await asyncio.sleep(_POLL_SECONDS)
        self._log("v4serve", f"ready after {time.monotonic() - started:.1f} s")

    async def _stop(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await stop(list(self._children.values()), STOP_SECONDS)
        self._resources.close()


async def serve(config: LocalConfig, command: Command = own_command) -> None:
    """Serves until cancelled. Raises ConfigError or DeploymentError."""
    async with LocalDeployment(config, log=LOGS[config.log_format], command=command) as deployment:
        print(_greeting(deployment, served_name(config.model)), flush=True)
        await deployment.run()


def _local(settings: LocalConfig) -> None:
    """Serve a model on this machine, with a router, prefill and decode workers behind one address.

    Ctrl-C or SIGTERM stops everything. If a worker dies, serving goes on while another worker of its role runs.
    """
    with needs("local"):
        import httpx  # noqa: F401, PLC0415
    configure(settings.log_format)
    ModelConfig.from_path(settings.model)  # raises here, so that a wrong path is one error and not one per child
    asyncio.run(until_signal(serve(settings)))


local = command(LocalConfig, _local, flags={"model": Checkpoint})


def _greeting(deployment: LocalDeployment, name: str) -> str:
    url = deployment.url
    body = {"model": name, "messages": [{"role": "user", "content": "Tell me a story."}], "stream": True}
    return f"""v4serve answers at {url}
  watch it in a browser at this address, or in a terminal: {program_name()} top {url}
  send it requests: {program_name()} load {url}
  scrape it with Prometheus: prometheus --config.file={deployment.prometheus}

  curl -N {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{json.dumps(body)}'
"""


async def _is_ready(client: "httpx.AsyncClient") -> bool:
    """Returns whether the router has generated a token through a pair of workers."""
    import httpx  # noqa: PLC0415

    try:
        return (await client.get("/ready")).status_code == 200
    except httpx.TransportError:  # the router does not listen yet, or does not answer in time
        return False


@contextmanager
def _reserved(port: int) -> Iterator[None]:
    """Keeps `port` bound within the context; the router binds it later.

    Raises ConfigError if the port cannot be bound, so that a taken port is reported before any process starts.
    """
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((HOST, port))
        except OSError as error:
            reason = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise ConfigError(f"port {port} {reason}: choose another one as --port, or 0 for any free port") from error
        yield


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
