"""A cluster by hand. up: one that stays until down. shell: one for a shell, gone when the shell ends.

With --image the project's image is built and imported.
"""

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO, cast

from tests.cluster import image
from tests.cluster.machine import cache
from tests.cluster.machine.errors import ClusterError
from tests.cluster.machine.local import LocalCluster
from tests.cluster.machine.waiting import wait

_UP_SECONDS = 1800.0  # the first time everything is built
_DOWN_SECONDS = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.machine", description=__doc__)
    parser.add_argument("action", choices=["up", "down", "shell", "serve"], help="serve: what up starts")
    parser.add_argument("--image", action="store_true", help="with the project's image")
    arguments = parser.parse_args()
    try:
        if arguments.action == "up":
            _up(["--image"] if arguments.image else [])
        elif arguments.action == "down":
            _down()
        else:
            run = _shell if arguments.action == "shell" else _serve
            run([image.build()] if arguments.image else [])
    except ClusterError as error:
        sys.exit(str(error))


def _state_file() -> Path:
    return cache.folder() / "up.json"


def _running() -> dict[str, Any] | None:
    """What the running cluster has said of itself; its process holds the file's lock."""
    try:
        with _state_file().open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return cast(dict[str, Any], json.loads(file.read() or "{}"))
    except FileNotFoundError:
        pass
    return None


def _up(flags: Sequence[str]) -> None:
    if not _running():
        command = [sys.executable, "-m", "tests.cluster.machine", "serve", *flags]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

        def check() -> None:
            if server.poll() is not None:
                sys.exit(server.returncode)

        wait(lambda: "kubeconfig" in (_running() or {}), _UP_SECONDS, "the cluster is up", check)
    state = _running() or {}
    print(f"export KUBECONFIG={state['kubeconfig']} PATH={state['tools']}:$PATH")


def _down() -> None:
    state = _running()
    if state is None:
        sys.exit("no cluster is up")
    os.kill(state["pid"], signal.SIGTERM)
    wait(lambda: _running() is None, _DOWN_SECONDS, "the cluster is down")


def _serve(archives: Sequence[Path]) -> None:
    """Until SIGTERM."""
    stop = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    with _state_file().open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _say(file, pid=os.getpid())
        with closing(LocalCluster(archives)) as cluster:
            _say(file, pid=os.getpid(), kubeconfig=str(cluster.kubeconfig), tools=str(cluster.tools))
            signal.sigwait(stop)
        _state_file().unlink()


def _say(file: TextIO, **state: object) -> None:
    file.seek(0)
    file.truncate()
    json.dump(state, file)
    file.flush()


def _shell(archives: Sequence[Path]) -> None:
    with closing(LocalCluster(archives)) as cluster:
        subprocess.run([os.environ.get("SHELL", "/bin/bash")], env=cluster.environment, check=False)


if __name__ == "__main__":
    main()
