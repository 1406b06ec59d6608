"""`make test` runs the gates as one of the tests, so that both lanes have work until the end."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.timeout(1200)  # for mypy's first run on a busy machine
def test_the_gates_pass() -> None:
    # Without the variables of the make that runs this test, so that its jobs and targets do not affect this make.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    gates = subprocess.run(["make", "check"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert gates.returncode == 0, f"make check:\n{gates.stdout}{gates.stderr}"
