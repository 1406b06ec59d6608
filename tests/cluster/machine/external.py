"""Any other cluster, named by V4SERVE_TEST_KUBECONFIG: images are pulled, its API server is not ours to stop."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.machine import build
from tests.cluster.machine.cluster import ServingCluster, service_port
from tests.cluster.machine.errors import ClusterError


class ExternalCluster(ServingCluster):
    """A cluster that runs already and goes on after the tests."""

    def __init__(self, kubeconfig: Path, image: str) -> None:
        """`image` is a reference of the project's image that its nodes can pull. Raises CommandFailed, OSError."""
        super().__init__(build.client_tools(), Path(tempfile.mkdtemp(prefix="v4serve-clients-")))
        self.kubeconfig = kubeconfig.resolve()
        self.image = image

    @contextmanager
    def connect(self, namespace: str, service: str, port: int) -> Iterator[str]:
        """kubectl's forwarding: all connections of one call go to one pod, and end with it."""
        service_port(self.get("service", service, "--namespace", namespace), port)
        command = ["kubectl", "port-forward", "--namespace", namespace, f"service/{service}", f":{port}"]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True) as forward:
            try:
                assert forward.stdout
                words = forward.stdout.readline().split()  # Forwarding from 127.0.0.1:PORT -> PORT
                if words[:2] != ["Forwarding", "from"]:
                    raise ClusterError(f"kubectl port-forward of {namespace}/{service} did not start")
                yield f"http://{words[2]}"
            finally:
                forward.terminate()

    def stop_api_server(self) -> None:
        pytest.skip("the API server of another cluster (V4SERVE_TEST_KUBECONFIG) cannot be stopped")

    def start_api_server(self) -> None:
        self.stop_api_server()

    def close(self) -> None:
        shutil.rmtree(self._scratch)
