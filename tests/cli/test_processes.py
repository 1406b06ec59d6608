import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.waiting import gone, until
from v4_cli import child as child_program
from v4_cli.processes import Child, describe_end, stop, until_signal

IGNORES_SIGTERM = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


async def start(code: str, lines: list[str]) -> Child:
    return await Child.start("c", [sys.executable, "-c", code], os.environ, lines.append)


async def test_output_is_passed_on_line_by_line() -> None:
    lines: list[str] = []
    code = "import sys; print('a\\rb'); print('é', file=sys.stderr); print('x' * 200_000); print('end', end='')"
    one = await start(code, lines)
    assert await one.wait() == 0
    assert not one.running
    assert {"a", "b", "é"} < set(lines)
    assert lines[-1].endswith("end")
    assert "".join(lines).count("x") == 200_000


async def test_exit_codes_and_signals() -> None:
    one = await start("raise SystemExit(7)", [])
    assert await one.wait() == 7
    other = await start("import time; time.sleep(600)", [])
    other.send(signal.SIGKILL)
    assert await other.wait() == -signal.SIGKILL
    other.send(signal.SIGKILL)  # to a process that has ended: no effect


async def test_stop_asks_then_kills_at_the_deadline() -> None:
    lines: list[str] = []
    stubborn = [await start(IGNORES_SIGTERM, lines) for _ in range(2)]
    polite = await start("print('up', flush=True); import time; time.sleep(600)", lines)
    await until(lambda: lines.count("up") == 3)
    started = time.monotonic()
    await stop([*stubborn, polite], grace_seconds=0.3)
    assert 0.3 <= time.monotonic() - started < 3
    assert [await one.wait() for one in (*stubborn, polite)] == [-9, -9, -15]
    assert gone(*(one.pid for one in (*stubborn, polite)))()


async def test_what_a_child_started_ends_with_it() -> None:
    lines: list[str] = []
    one = await start("import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)", lines)
    assert await one.wait() == 0
    await until(gone(int(lines[0])))


async def test_a_process_that_left_the_group_does_not_hold_the_end_back() -> None:
    lines: list[str] = []
    code = "import subprocess; print(subprocess.Popen(['sleep', '5'], start_new_session=True).pid, flush=True)"
    one = await start(code, lines)
    assert await asyncio.wait_for(one.wait(), 4) == 0
    os.kill(int(lines[0]), signal.SIGKILL)


async def test_a_program_that_does_not_exist() -> None:
    lines: list[str] = []
    one = await Child.start("c", ["./no-such-program"], os.environ, lines.append)
    assert await one.wait() != 0
    assert any("No such file" in line for line in lines)


PARENT = """
import asyncio, os
from v4_cli.processes import Child
async def main():
    child = await Child.start("c", ["sleep", "600"], os.environ, print)
    print(child.pid, flush=True)
    await child.wait()
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can bind a child to its parent")
def test_a_child_does_not_outlive_a_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    asyncio.run(until(gone(pid)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can bind a child to its parent")
def test_a_child_whose_parent_ended_before_it_was_bound_does_not_begin() -> None:
    command = [sys.executable, "-I", "-S", str(child_program.__file__), "1", "echo", "begun"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "the parent process has ended\n")


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "SIGKILL"), (-99, "signal 99")]
)
def test_describe_end(code: int, text: str) -> None:
    assert describe_end(code) == text


async def test_until_signal_hands_back_results_and_errors() -> None:
    async def work() -> int:
        return 5

    async def fail() -> int:
        raise ValueError("no")

    assert await until_signal(work()) == 5
    with pytest.raises(ValueError, match="no"):
        await until_signal(fail())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_until_signal_cancels_once_and_lets_the_work_clean_up(number: signal.Signals) -> None:
    cleaned = []

    async def work() -> int:
        try:
            os.kill(os.getpid(), number)
            return await asyncio.Event().wait()
        finally:
            for _ in range(3):  # as an impatient user does
                os.kill(os.getpid(), number)
                await asyncio.sleep(0)
            cleaned.append(True)

    result: object = await until_signal(work())
    assert result is None
    assert cleaned == [True]
