"""Child processes: start, read, signal and stop them, and leave none behind. Knows nothing of what they do.

A child has a session of its own, so that a terminal's Ctrl-C reaches the supervisor alone and whatever the child
starts can be ended with it. It dies with its parent (child.py). Start children from a thread that lives as long as
they shall: Linux takes the end of that thread for the end of the parent.
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
_LINE_END = re.compile(rb"[\r\n]+")  # a progress bar ends its lines with \r


class Started(Protocol):
    """A process that was started: asyncio's, or one like it."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int: ...


class Child:
    """One running or ended child process."""

    def __init__(self, name: str, process: Started, output: int, on_line: Callable[[str], None]) -> None:
        """`process` leads a session of its own. `output` is the descriptor that its output is read from; owned from
        now on."""
        self.name = name
        self.pid = process.pid
        self._process = process
        self._end = asyncio.create_task(self._run(output, on_line), name=f"child {name}")

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], environment: Mapping[str, str], on_line: Callable[[str], None]
    ) -> "Child":
        """Start `command`; `on_line` gets each line of its stdout and stderr. Raises OSError."""
        output, written = os.pipe()  # not asyncio's own pipe, with which waiting for the end means waiting for its EOF
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
        """Whether it has not ended yet."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Its exit code once it has ended and its output was handed on; minus the number of a signal that ended it."""
        return await asyncio.shield(self._end)

    def send(self, number: signal.Signals) -> None:
        """Signal it and whatever it started, if it runs."""
        if self.running:
            self._signal_group(number)

    async def _run(self, output: int, on_line: Callable[[str], None]) -> int:
        reading = asyncio.create_task(_hand_on(output, on_line))
        code = await self._process.wait()
        self._signal_group(signal.SIGKILL)  # what it started and left behind
        # Ends with the output, unless a process that left the group holds it open.
        await asyncio.wait([reading], timeout=_LAST_OUTPUT_SECONDS)
        if not reading.done():
            reading.cancel()
            await asyncio.wait([reading])
        return code

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


async def stop(children: Sequence[Child], grace_seconds: float) -> None:
    """SIGTERM to all, SIGKILL to those that still run after `grace_seconds`; returns when none runs."""
    for number, timeout in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, None)):
        running = [one for one in children if one.running]
        for one in running:
            one.send(number)
        if running:
            await asyncio.wait([asyncio.ensure_future(one.wait()) for one in running], timeout=timeout)
    for one in children:
        await one.wait()


def describe_end(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


async def until_signal(work: Coroutine[Any, Any, T]) -> T | None:
    """Run `work`; at the first SIGINT or SIGTERM cancel it and return None. Further signals change nothing."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    task, signalled = asyncio.ensure_future(work), asyncio.ensure_future(asked.wait())
    await asyncio.wait((task, signalled), return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
    return None if task.cancelled() else task.result()


async def _hand_on(output: int, on_line: Callable[[str], None]) -> None:
    """Call `on_line` with each line from this descriptor until it ends, then close it."""
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
