"""`make test` runs the gates beside the tests: one test among them, so that both lanes have work to the end."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.timeout(1200)  # mypy's first run on a busy machine
def test_the_gates_pass() -> None:
    # Of the make that runs this test, whose jobs and targets are no business of the inner one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    gates = subprocess.run(["make", "check"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert gates.returncode == 0, f"make check:\n{gates.stdout}{gates.stderr}"
