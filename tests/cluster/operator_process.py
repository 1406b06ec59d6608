"""`v4serve operator` as a process of this machine, beside a cluster: for tests that need no pod of it."""

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.machine.cluster import Cluster

START_SECONDS = 60.0


class OperatorProcess:
    """Serves one namespace, in which its Lease lies too."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, environment: Mapping[str, str] | None = None):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._cluster = cluster
        self.log = folder / f"operator-{self._port}.log"
        flags = {
            "namespace": namespace,
            "lease-namespace": namespace,
            "lease-name": "op-v4serve",
            "worker-image": "none.invalid/worker:1",
            "router-image": "none.invalid/router:1",
            "health-host": "127.0.0.1",
            "health-port": str(self._port),
        }
        command = [sys.executable, "-m", "v4_cli.main", "operator", *(f"--{k}={v}" for k, v in flags.items())]
        with self.log.open("wb") as log:
            env = environment or cluster.environment
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)

    def serving(self) -> "OperatorProcess":
        """Wait until it holds the Lease and knows everything."""
        self._cluster.wait(lambda: self.says("serving ") and self.ready(), START_SECONDS, f"{self.log} says it serves")
        return self

    def ready(self) -> bool:
        """What /readyz says."""
        assert self.process.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=10) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def figure(self, name: str, without: tuple[str, ...] = ()) -> float:
        """Sum of a metric over its labels, but those that hold a word of `without`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
            lines = [line.rpartition(" ") for line in answer.read().decode().splitlines()]
        found = [(key, float(value)) for key, _, value in lines if key.partition("{")[0] == name]
        return sum(value for key, value in found if not any(word in key for word in without))

    @property
    def writes(self) -> float:
        """Changes of children that it asked the API server for; not what it tells of pods that cannot run."""
        return self.figure("v4serve_operator_api_writes_total", without=("Lease", "V4Deployment", "Event"))

    @property
    def looks(self) -> float:
        """Times that it looked at a V4Deployment."""
        return self.figure("v4serve_operator_reconciles_total")

    def says(self, text: str) -> bool:
        """Whether the log has it."""
        return text in self.log.read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(START_SECONDS)
