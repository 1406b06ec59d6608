"""Starts, reads, signals and stops child processes, and leaves none behind. Does not know what they do.

A child has its own session, so that a terminal's Ctrl-C reaches only the supervisor, and so that all processes that the
child started can be ended with it. A child is killed when its parent ends (child.py). Children must be started from a
thread that lives as long as they do, since Linux treats the end of that thread as the end of the parent.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from v4_cli import child

T = TypeVar("T")

_CHUNK_BYTES = 64 * 1024
_LAST_OUTPUT_SECONDS = 1.0
_LINE_END = re.compile(rb"[\r\n]+")  # with \r, since progress bars end their lines with it


class Started(Protocol):
    """A started process, with the attributes of asyncio.subprocess.Process that are used here."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int: ...


class Child:
    """A child process, which runs or has ended."""

    def __init__(self, name: str, process: Started, output: int, on_line: Callable[[str], None]) -> None:
        """`process` must lead its own session. `output` is the descriptor from which its output is read; the Child
        closes it."""
        self.name = name
        self.pid = process.pid
        self._process = process
        self._end = asyncio.create_task(self._run(output, on_line), name=f"child {name}")

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], environment: Mapping[str, str], on_line: Callable[[str], None]
    ) -> "Child":
        """Starts `command`, and calls `on_line` with each line of its stdout and stderr. Raises OSError."""
        output, written = os.pipe()  # with asyncio's own pipe, wait() would also wait for the end of the output
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(Path(child.__file__)), str(os.getpid()), *command),
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=written,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(written)
        return cls(name, process, output, on_line)

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Waits until the process has ended and its output was passed on. Returns its exit code, or -N for signal N."""
        return await asyncio.shield(self._end)

    def send(self, number: signal.Signals) -> None:
        """Signals the process and all processes of its group, if it runs."""
        if self.running:
            self._signal_group(number)

    async def _run(self, output: int, on_line: Callable[[str], None]) -> int:
        reading = asyncio.create_task(_read_lines(output, on_line))
        code = await self._process.wait()
        self._signal_group(signal.SIGKILL)  # processes that it started and did not end
        # The reading ends with the output, unless a process that left the group still holds the output open.
        await asyncio.wait([reading], timeout=_LAST_OUTPUT_SECONDS)
        if not reading.done():
            reading.cancel()
            await asyncio.wait([reading])
        return code

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


async def stop(children: Sequence[Child], grace_seconds: float) -> None:
    """Sends SIGTERM to all, and SIGKILL to those that still run after `grace_seconds`. Returns when all have ended."""
    for number, timeout in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, None)):
        running = [one for one in children if one.running]
        for one in running:
            one.send(number)
        if running:
            await asyncio.wait([asyncio.ensure_future(one.wait()) for one in running], timeout=timeout)
    for one in children:
        await one.wait()


def describe_end(code: int) -> str:
    """Returns a description of an exit code: "exit code 3", or the name of the signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


async def until_signal(work: Coroutine[Any, Any, T]) -> T | None:
    """Returns the result of `work`, or cancels it at the first SIGINT or SIGTERM and returns None.

    Further signals are ignored.
    """
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    task, signalled = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    await asyncio.wait((task, signalled), return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
    return None if task.cancelled() else task.result()


async def _read_lines(output: int, on_line: Callable[[str], None]) -> None:
    """Calls `on_line` with each line that is read from the descriptor until its end, then closes the descriptor."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output, "rb", buffering=0)
    )
    rest = b""
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            *lines, rest = _LINE_END.split(rest + chunk)
            if len(rest) > _CHUNK_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                on_line(line.decode(errors="replace"))
    finally:
        transport.close()
    if rest:
        on_line(rest.decode(errors="replace"))
