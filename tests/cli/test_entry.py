"""SIGTERM during the imports of a container's first process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_SECONDS = 30.0
_COMMAND = "from v4_cli.entry import main; main()"


@pytest.mark.skipif(os.geteuid() != 0 and os.environ.get("CI") != "true", reason="making a PID namespace takes root")
def test_sigterm_during_imports_ends_the_process() -> None:
    inside = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", _COMMAND, "prefill", "--port", "0"]
    with subprocess.Popen(inside) as process:
        first = _until_it_listens(process.pid)
        assert "libtorch" not in Path(f"/proc/{first}/maps").read_text(), "it handles SIGTERM before it imports torch"
        os.kill(first, signal.SIGTERM)
        assert process.wait(_SECONDS) == 128 + signal.SIGTERM


def _until_it_listens(parent: int) -> int:
    """Returns the descendant process that handles SIGTERM."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            caught = Path(f"/proc/{child}/status").read_text().partition("SigCgt:")[2].split()[0]
            if int(caught, 16) >> (signal.SIGTERM - 1) & 1:
                return int(child)
    raise AssertionError("no process handles SIGTERM")
