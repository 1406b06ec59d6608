"""A worker as a process: bad models and ports are one line, signals end it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import tiny_checkpoint


def start(role: str, model: Path, *flags: str) -> "subprocess.Popen[str]":
    """`v4serve prefill|decode`."""
    command = [sys.executable, "-m", "v4_cli.main", role, "--model", str(model), "--memory", "64MB", *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def until_ready(process: "subprocess.Popen[str]") -> str:
    """Its address, once it says that it is ready."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"worker ready on (\S+),", line):
            return found.group(1)
    raise AssertionError("the worker ended before it was ready")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with start("prefill", tiny_checkpoint(tmp_path / "m"), "--device", "cpu") as process:
        until_ready(process)
        process.send_signal(number)
        assert process.wait(20) == 0
        assert process.stdout is not None
        assert "Traceback" not in process.stdout.read()


def test_what_is_wrong_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    broken = tiny_checkpoint(tmp_path / "m")
    (broken / "model.safetensors").write_bytes(b"no weights")
    with start("decode", broken) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "error: " in out
    assert "not a valid safetensors file" in out
    assert "Traceback" not in out


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    model = tiny_checkpoint(tmp_path / "m")
    with start("prefill", model) as first:
        port = until_ready(first).rpartition(":")[2]
        with start("decode", model, "--port", port) as second:
            out, _ = second.communicate(timeout=60)
        first.terminate()
        first.wait(20)
    assert second.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in out
    assert "Traceback" not in out
