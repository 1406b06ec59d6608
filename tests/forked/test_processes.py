"""Forked processes are to tests what started ones are to users."""

import asyncio
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.waiting import alive, gone, until
from tests.forked.processes import fork
from tests.tiny import tiny_checkpoint
from v4_cli.processes import Child

ROOT = Path(__file__).parents[2]
WORKER = ["decode", "--memory", "64MB", "--dtype", "fp64", "--model"]


async def code_of(child: Child) -> int:
    """Its exit code, in time."""
    return await asyncio.wait_for(child.wait(), 60)


async def test_it_is_the_command_with_its_output_and_code() -> None:
    lines: list[str] = []
    assert await code_of(fork("a", ["--version"], {}, lines.append)) == 0
    assert lines == [f"v4serve {version('v4serve')}"]
    assert await code_of(fork("b", ["no-such-command"], {}, lines.append)) == 2
    assert "no-such-command" in lines[-1]


async def test_its_environment_is_the_one_given(tmp_path: Path) -> None:
    """Here one that it refuses."""
    lines: list[str] = []
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "nothing"}
    child = fork("a", [*WORKER, str(tiny_checkpoint(tmp_path / "m"))], environment, lines.append)
    assert await code_of(child) == 2
    assert "OTEL_EXPORTER_OTLP_PROTOCOL" in lines[-1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
async def test_a_signal_ends_it(tmp_path: Path, number: signal.Signals, code: int) -> None:
    lines: list[str] = []
    child = fork("a", [*WORKER, str(tiny_checkpoint(tmp_path / "m"))], os.environ, lines.append)
    await until(lambda: any("worker ready" in line for line in lines), 60)
    assert child.running
    child.send(number)
    assert await code_of(child) == code
    assert not child.running


PROGRAM = """
import asyncio, sys
from tests.forked.processes import fork

async def main():
    child = fork("a", sys.argv[1:], {}, lambda line: print("ready", flush=True) if "worker ready" in line else None)
    print(child.pid, flush=True)
    await child.wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_it_ends_with_who_asked_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, *WORKER, str(tiny_checkpoint(tmp_path / "m"))]
    program = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert program.stdout is not None
        async with asyncio.timeout(60):
            pid = int(await program.stdout.readline())
            assert await program.stdout.readline() == b"ready\n"
        assert alive(pid)
    finally:
        program.kill()
        await program.wait()
    await until(gone(pid))
