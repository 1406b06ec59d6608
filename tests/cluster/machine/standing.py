"""The cluster of `up`, which outlives the command: a process of its own makes and holds it, until `down`.

Others learn of it by files in the cache: standing.lock is locked while that process lives, standing.log is what it
says, standing.json where the cluster is. Knows nothing of what the process makes.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol, TextIO

from tests.cluster.machine import cache
from tests.cluster.machine.errors import ClusterError
from tests.cluster.machine.waiting import wait

_POLL_SECONDS = 0.2
_DOWN_SECONDS = 120.0


class Held(Protocol):
    """What the process holds: a cluster."""

    kubeconfig: Path
    tools: Path

    def close(self) -> None:
        """End it."""


def log_file() -> Path:
    """What the process has said."""
    return cache.folder() / "standing.log"


def start(command: Sequence[str]) -> bool:
    """Start `command`, which calls `hold`; False if there is such a process already.

    The lock is passed on with its descriptor, so that there are never two, and never none in between.
    """
    with _lock_file().open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        _state_file().unlink(missing_ok=True)
        with log_file().open("w") as log:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )
    return True


def join(to: TextIO) -> dict[str, str]:
    """Wait, for as long as the process lives, until the cluster is up; what the process says goes to `to`.

    Returns the paths `kubeconfig` and `tools`. Raises ClusterError.
    """
    with log_file().open() as log:
        while True:
            lives, state = _lives(), _state()  # in this order: a process that ends leaves no state
            to.write(log.read())
            to.flush()
            if "kubeconfig" in state:
                return state
            if not lives:
                raise ClusterError(f"the cluster did not come up; what was said is in {log_file()}")
            time.sleep(_POLL_SECONDS)


def stop() -> None:
    """End the process and what it is making or has made. Raises ClusterError."""

    def check() -> None:
        if not _lives():
            raise ClusterError("no cluster is up")

    check()
    pid = wait(lambda: _state().get("pid", ""), _DOWN_SECONDS, "the cluster's process has said who it is", check)
    os.killpg(int(pid), signal.SIGTERM)  # with the commands that build; daemons are in groups of their own
    wait(lambda: not _lives(), _DOWN_SECONDS, "the cluster is down")


def hold(make: Callable[[], Held]) -> None:
    """In the process: make the cluster and hold it until SIGTERM, which may also come while it is being made."""
    signal.signal(signal.SIGTERM, _end)
    _tell(pid=str(os.getpid()))
    try:
        with closing(make()) as cluster:
            _tell(pid=str(os.getpid()), kubeconfig=str(cluster.kubeconfig), tools=str(cluster.tools))
            while True:
                signal.pause()
    finally:
        _state_file().unlink(missing_ok=True)


def _end(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # the end is not cut short
    sys.exit("ended by `down`")


def _lives() -> bool:
    try:
        with _lock_file().open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def _state() -> dict[str, str]:
    try:
        state: dict[str, str] = json.loads(_state_file().read_text())
    except FileNotFoundError:
        return {}
    return state


def _tell(**state: str) -> None:
    """Whole or not at all."""
    fresh = _state_file().with_suffix(".new")
    fresh.write_text(json.dumps(state))
    fresh.rename(_state_file())


def _lock_file() -> Path:
    return cache.folder() / "standing.lock"


def _state_file() -> Path:
    return cache.folder() / "standing.json"
