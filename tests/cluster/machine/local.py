"""A real cluster of one node on this machine, in namespaces of its own, and its end without a trace.

Everything runs in one sandbox. To this machine it shows the API server, and Services on request, on loopback.
"""

import http.client
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.machine import build, cache, control_plane, images, node
from tests.cluster.machine.api import Api
from tests.cluster.machine.cluster import Cluster, service_port
from tests.cluster.machine.forwarder import Forwarder
from tests.cluster.machine.layout import API_ADDRESS, API_PORT, CRD_API_PORT, KUBE_PROXY_PORT, NODE, NODE_ADDRESS
from tests.cluster.machine.nameserver import NameServer
from tests.cluster.machine.pki import Authority
from tests.cluster.machine.sandbox import Daemon, Sandbox, inside, remove_abandoned
from tests.cluster.machine.tools_image import tools_image
from tests.cluster.machine.waiting import wait

IMAGE = "docker.io/library/v4serve:test"

_API_SERVER_SECONDS = 120.0
_API_SERVER_STOP_SECONDS = 5.0  # it would wait a minute for the ends of watches
_NODE_SECONDS = 120.0
_PROXY_SECONDS = 60.0
_CONNECT_SECONDS = 5.0


class LocalCluster(Cluster):
    """etcd, control plane, one node with containerd, kubelet and kube-proxy, a nameserver."""

    image = IMAGE

    def __init__(self, archives: Sequence[Path] = ()) -> None:
        """Start it with the images of these docker-archives. Raises PartMissing, ClusterError."""
        self._parts = build.parts()
        runs = cache.folder() / "run"
        remove_abandoned(runs)
        self._sandbox = Sandbox(runs)
        super().__init__(self._parts.clients, self._sandbox.folder)
        self._forwarder = Forwarder(self._sandbox.network)
        self._names: NameServer | None = None
        try:
            self._start(archives)
        except BaseException:
            self.close()
            raise

    def _start(self, archives: Sequence[Path]) -> None:
        sandbox, folder = self._sandbox, self._sandbox.folder
        for command in node.network_commands():
            sandbox.run(*command)
        self._authority = Authority(folder / "pki", NODE, ["127.0.0.1", NODE_ADDRESS, API_ADDRESS])
        for client in ("admin", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"):
            self._authority.kubeconfig(folder / "pki" / f"{client}.kubeconfig", client, f"https://127.0.0.1:{API_PORT}")
        sandbox.spawn("etcd", *control_plane.etcd())
        self._api_server = self._spawn_api_server()
        self._api_port = self._forwarder.open("127.0.0.1", API_PORT)
        url = f"https://127.0.0.1:{self._api_port}"
        self.kubeconfig = self._authority.kubeconfig(folder / "kubeconfig", "admin", url)
        # While the API server starts.
        images.copy_store([tools_image(), *archives], folder / "images")
        node.write_pod_network(folder)
        node.write_kubelet(folder, sandbox.name)
        images.start(sandbox, pods=True)
        sandbox.spawn("kubelet", *node.kubelet(self._parts.kubernetes))  # it first looks for Docker, for 5 s
        self._wait_for_api_server()
        self._start_components()

    def _start_components(self) -> None:
        binaries = self._parts.kubernetes
        self._sandbox.spawn("kube-controller-manager", *control_plane.controller_manager(binaries))
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

    def _api(self) -> Api:
        return Api(self._api_port, self._sandbox.folder / "pki")

    def _spawn_api_server(self) -> Daemon:
        return self._sandbox.spawn("kube-apiserver", *control_plane.api_server(self._parts.kubernetes))

    def _wait_for_api_server(self) -> None:
        api = self._api()
        try:
            wait(api.ready, _API_SERVER_SECONDS, "the API server is ready", self._sandbox.check)
        finally:
            api.close()

    def stop_api_server(self) -> None:
        self._sandbox.stop(self._api_server, _API_SERVER_STOP_SECONDS)

    def start_api_server(self) -> None:
        self._api_server = self._spawn_api_server()
        self._wait_for_api_server()

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

    def start_crd_server(self, binary: Path) -> Path:
        """Start a current Kubernetes' CRD server (build.py) beside the API server: a kubeconfig for it.

        It has CRDs and custom resources, an empty store of its own, and no discovery: ask it by path
        (`kubectl create --raw`) or with a client that needs no discovery.
        """
        self._sandbox.spawn("crd-etcd", *control_plane.crd_etcd())
        self._sandbox.spawn("crd-server", *control_plane.crd_server(binary))
        port = self._forwarder.open("127.0.0.1", CRD_API_PORT)
        api = Api(port, self._sandbox.folder / "pki")
        try:
            wait(api.ready, _API_SERVER_SECONDS, "the CRD server is ready", self._sandbox.check)
        finally:
            api.close()
        path = self._sandbox.folder / "crd-server.kubeconfig"
        return self._authority.kubeconfig(path, "admin", f"https://127.0.0.1:{port}")

    def dump(self, folder: Path) -> None:
        shutil.copytree(self._sandbox.folder / "log", folder / "daemons")
        super().dump(folder)

    def close(self) -> None:
        if self._names:
            self._names.close()
        self._forwarder.close()
        self._sandbox.close()


def _ready(api: Api) -> bool:
    """Whether the node is ready and pods can be made: they need their namespace's service account."""
    found = api.get(f"/api/v1/nodes/{NODE}")
    conditions = found["status"].get("conditions", []) if found else []
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and api.get("/api/v1/namespaces/default/serviceaccounts/default") is not None
