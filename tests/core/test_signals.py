"""A process that is over is not killed by a late signal; one that never handled any is."""

import subprocess
import sys

import pytest

LATE = """
import asyncio, os, signal, sys, uvloop
from v4_core.signals import run

async def main():
    asked = asyncio.Event()
    if sys.argv[2] == "handles":
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, asked.set)
        os.kill(os.getpid(), signal.SIGTERM)
        await asked.wait()

run(main(), uvloop.new_event_loop if sys.argv[1] == "uvloop" else None)
os.kill(os.getpid(), signal.SIGTERM)
if sys.argv[2] == "handles":
    os.kill(os.getpid(), signal.SIGINT)
print("ended by itself")
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(("what", "code", "said"), [("handles", 0, "ended by itself\n"), ("does not", -15, "")])
def test_late_signals(loop: str, what: str, code: int, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", LATE, loop, what], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, said, "")
