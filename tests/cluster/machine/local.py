"""A real cluster of one node on this machine: the control plane of local_control_plane.py, and pods that run.

To this machine it shows Services too, on request, on loopback.
"""

import http.client
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.machine import control_plane, images, node
from tests.cluster.machine.api import Api
from tests.cluster.machine.cluster import ServingCluster, service_port
from tests.cluster.machine.layout import KUBE_PROXY_PORT, NODE
from tests.cluster.machine.local_control_plane import ControlPlane, makes_pods
from tests.cluster.machine.nameserver import NameServer
from tests.cluster.machine.sandbox import inside
from tests.cluster.machine.tools_image import tools_image
from tests.cluster.machine.waiting import wait

IMAGE = "docker.io/library/v4serve:test"

_NODE_SECONDS = 120.0
_PROXY_SECONDS = 60.0
_CONNECT_SECONDS = 5.0


class LocalCluster(ControlPlane, ServingCluster):
    """etcd, control plane, one node with containerd, kubelet and kube-proxy, a nameserver."""

    image = IMAGE

    def __init__(self, archives: Sequence[Path] = ()) -> None:
        """Start it with the images of these docker-archives. Raises PartMissing, ClusterError."""
        self._archives = archives
        self._names: NameServer | None = None
        super().__init__()

    def _start(self) -> None:
        self._spawn_control_plane()
        # While the API server starts.
        sandbox, folder = self._sandbox, self._sandbox.folder
        images.copy_store([tools_image(), *self._archives], folder / "images")
        node.write_pod_network(folder)
        node.write_kubelet(folder, sandbox.name)
        images.start(sandbox, pods=True)
        sandbox.spawn("kubelet", *node.kubelet(self._parts.kubernetes))
        self._wait_for_api_server()
        self._start_components()

    def _start_components(self) -> None:
        binaries = self._parts.kubernetes
        self._spawn_controller_manager()
        self._sandbox.spawn("kube-scheduler", *control_plane.scheduler(binaries))
        self._names = NameServer(self._sandbox, self._api())
        api = self._api()
        try:
            wait(lambda: _ready(api), _NODE_SECONDS, "the node is ready", self._sandbox.check)
        finally:
            api.close()
        # Before there is a node it would wait for seconds between its looks.
        self._sandbox.spawn("kube-proxy", *node.kube_proxy(binaries))
        wait(self._routes_services, _NODE_SECONDS, "kube-proxy is healthy", self._sandbox.check)

    @contextmanager
    def connect(self, namespace: str, service: str, port: int) -> Iterator[str]:
        """Each connection goes to the Service's address, and kube-proxy's rules choose the pod.

        If the Service has a ready pod, kube-proxy is given the time to learn of it.
        """
        found = self.get("service", service, "--namespace", namespace)
        address = found["spec"]["clusterIP"], service_port(found, port)
        subsets = self.get("endpoints", service, "--namespace", namespace).get("subsets", [])
        if any("addresses" in subset for subset in subsets):
            wait(lambda: self._accepts(*address), _PROXY_SECONDS, f"{namespace}/{service} accepts connections")
        local = self._forwarder.open(*address)
        try:
            yield f"http://127.0.0.1:{local}"
        finally:
            self._forwarder.shut(local)

    def _routes_services(self) -> bool:
        """Whether kube-proxy has written its rules, without which no pod reaches a Service."""
        with inside(self._sandbox.network):
            connection = http.client.HTTPConnection("127.0.0.1", KUBE_PROXY_PORT, timeout=_CONNECT_SECONDS)
            try:
                connection.request("GET", "/healthz")
                return connection.getresponse().status == 200
            except OSError:
                return False
            finally:
                connection.close()

    def _accepts(self, host: str, port: int) -> bool:
        """Whether something inside takes connections there."""
        with inside(self._sandbox.network):
            there = socket.socket()
        with there:
            there.settimeout(_CONNECT_SECONDS)
            return there.connect_ex((host, port)) == 0

    def import_images(self, archive: Path) -> None:
        """Add the images of a docker-archive to the running node."""
        images.import_archive(self._sandbox, archive)

    def close(self) -> None:
        if self._names:
            self._names.close()
        super().close()


def _ready(api: Api) -> bool:
    """Whether the node is ready and pods can be made."""
    found = api.get(f"/api/v1/nodes/{NODE}")
    conditions = found["status"].get("conditions", []) if found else []
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and makes_pods(api)
