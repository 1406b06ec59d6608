"""The cluster of `up`: who calls it again, ends it early, or looks at what takes so long."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.cluster import image
from tests.cluster.machine import cache, progress, standing
from tests.cluster.machine.commands import follow
from tests.cluster.machine.errors import CommandFailed
from tests.cluster.machine.local import LocalCluster
from tests.cluster.machine.waiting import wait

pytestmark = pytest.mark.cluster

_SECONDS = 60
_MACHINE = (sys.executable, "-m", "tests.cluster.machine")
_HOLD = """
from pathlib import Path
from tests.cluster.machine import standing
class Made:
    kubeconfig, tools = Path("/its/kubeconfig"), Path("/its/tools")
    def close(self):
        print("closed", flush=True)
print("making it", flush=True)
standing.hold(Made)
"""
_UP = """
import sys
from tests.cluster.machine import standing
print(standing.start([sys.executable, "-c", sys.argv[1]]), standing.join(sys.stderr)["kubeconfig"])
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is built in it yet, and no cluster of a developer is in the way."""
    monkeypatch.setenv("V4SERVE_CACHE", str(tmp_path))


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)


@contextmanager
def _started(*command: str, errors: Path) -> Iterator[subprocess.Popen[bytes]]:
    with errors.open("wb") as file, subprocess.Popen(command, stderr=file) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="a cluster needs root")
def test_up_joins_one_that_is_being_made_and_down_ends_it(tmp_path: Path) -> None:
    """Held here is what would take minutes: the building of Kubernetes, by what seems to be another process."""
    one, two = tmp_path / "one", tmp_path / "two"
    with cache.lock("kubernetes"), _started(*_MACHINE, "up", errors=one) as first:
        wait(lambda: "done with kubernetes" in one.read_text(), _SECONDS, "the first says what it does")
        with _started(*_MACHINE, "up", errors=two) as second:
            wait(lambda: "done with kubernetes" in two.read_text(), _SECONDS, "the second says it too")
            assert first.poll() is None
            assert second.poll() is None
            assert _run(*_MACHINE, "down").returncode == 0
            assert first.wait(_SECONDS) == second.wait(_SECONDS) == 1
    assert "being made already" in two.read_text()
    for said in (one.read_text(), two.read_text()):
        assert "the cluster did not come up" in said
        assert "Traceback" not in said
    again = _run(*_MACHINE, "down")
    assert (again.returncode, again.stderr) == (1, "no cluster is up\n")


def test_up_again_says_again_where_the_cluster_is() -> None:
    first, second = (_run(sys.executable, "-c", _UP, _HOLD) for _ in range(2))
    assert first.stdout == "True /its/kubeconfig\n", first.stderr
    assert second.stdout == "False /its/kubeconfig\n", second.stderr
    assert first.stderr == second.stderr == "making it\n"
    standing.stop()
    assert "closed" in standing.log_file().read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="a cluster needs root")
def test_an_interrupted_up_says_that_it_goes_on(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with cache.lock("kubernetes"), _started(*_MACHINE, "up", errors=said) as up:
        wait(lambda: "done with kubernetes" in said.read_text(), _SECONDS, "it says what it does")
        up.send_signal(signal.SIGINT)
        assert up.wait(_SECONDS) == 1
        assert said.read_text().endswith("it goes on in the background: `up` waits for it again, `down` ends it\n")
        standing.stop()


def test_the_values_for_a_chart_installed_by_hand_name_the_image_that_the_node_has() -> None:
    values = yaml.safe_load(Path(__file__).with_name("values.yaml").read_text())
    for part in ("router", "worker"):
        assert "{repository}:{tag}".format(**values["image"][part]) == image.IMAGE == LocalCluster.image


def test_a_long_step_says_how_far_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    reminded = threading.Event()

    def state() -> str:
        reminded.set()
        return "3 of 4 eggs"

    with progress.step("laying eggs", state, every=0.01):
        assert reminded.wait(_SECONDS)
    first, second, *_ = capfd.readouterr().err.splitlines()
    assert first.endswith("] laying eggs")
    assert second.endswith("] laying eggs: 3 of 4 eggs")


def test_lines_are_followed_and_a_failure_shows_them() -> None:
    lines: list[str] = []
    with pytest.raises(CommandFailed, match=r"status 3\none\ntwo$"):
        follow(["sh", "-c", "echo one; echo two >&2; exit 3"], lines.append, env=os.environ)
    assert lines == ["one", "two"]
