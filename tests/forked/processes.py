"""Processes that are forked from one warmed parent instead of started: for tests that do not test starting.

The parent (parent.py) is multiprocessing's fork server. It is started at the first use; it and the forked processes end
with this one.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from v4_cli.local import LocalDeployment
from v4_cli.processes import Child

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.forked.parent"])


class ForkedDeployment(LocalDeployment):
    """A local deployment whose commands, each `python -m v4_cli.main ARGUMENT...`, are forked."""

    async def _start_child(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        program = [sys.executable, "-m", "v4_cli.main"]
        assert list(command[:3]) == program, f"only {program} can be forked"
        return fork(name, command[3:], environment, self._line_logger(name))


class _Forked:
    """A forked process, as `Child` wants it."""

    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.exitcode

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process.sentinel)
        code = self._process.exitcode
        assert code is not None
        return code


def fork(name: str, arguments: Sequence[str], environment: Mapping[str, str], on_line: Callable[[str], None]) -> Child:
    """Run `v4serve` with these arguments in a process of its own."""
    output, written = _CONTEXT.Pipe(duplex=False)
    with output, written:
        process = _CONTEXT.Process(target=_run, args=(list(arguments), dict(environment), written))
        process.start()
        return Child(name, _Forked(process), os.dup(output.fileno()), on_line)


def _run(arguments: list[str], environment: dict[str, str], output: Connection) -> None:
    """In the child: become what `exec` would have made."""
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with output:
        for number in (1, 2):
            os.dup2(output.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    from v4_cli.main import run  # here, since the parent of tests need not import it

    sys.exit(run(arguments))


def _end_with_parent() -> None:
    """By its death, the process that asked for this one; what this one started ends too."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)
