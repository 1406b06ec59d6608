"""A control plane on this machine, in namespaces of its own, and its end without a trace: objects, but no pod runs.

Everything runs in one sandbox. To this machine it shows the API server on loopback.
"""

import shutil
from pathlib import Path

from tests.cluster.machine import build, cache, control_plane, node
from tests.cluster.machine.api import Api
from tests.cluster.machine.cluster import Cluster
from tests.cluster.machine.forwarder import Forwarder
from tests.cluster.machine.layout import API_ADDRESS, API_PORT, CRD_API_PORT, NODE, NODE_ADDRESS
from tests.cluster.machine.pki import Authority
from tests.cluster.machine.sandbox import Daemon, Sandbox, remove_abandoned
from tests.cluster.machine.waiting import wait

_API_SERVER_SECONDS = 120.0
_API_SERVER_STOP_SECONDS = 5.0  # it would wait a minute for the ends of watches
_CLIENTS = ("admin", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")


class ControlPlane(Cluster):
    """etcd, API server and controller manager. Pods are made, never placed, and gone as soon as they are deleted."""

    def __init__(self) -> None:
        """Start it. Raises PartMissing, ClusterError."""
        self._parts = build.parts()
        runs = cache.folder() / "run"
        remove_abandoned(runs)
        self._sandbox = Sandbox(runs)
        super().__init__(self._parts.clients, self._sandbox.folder)
        self._forwarder = Forwarder(self._sandbox.network)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self._spawn_control_plane()
        self._wait_for_api_server()
        self._spawn_controller_manager()
        api = self._api()
        try:
            wait(lambda: makes_pods(api), _API_SERVER_SECONDS, "pods can be made", self._sandbox.check)
        finally:
            api.close()

    def _spawn_control_plane(self) -> None:
        """etcd and API server; the latter takes some seconds to answer."""
        sandbox, folder = self._sandbox, self._sandbox.folder
        for command in node.network_commands():
            sandbox.run(*command)
        self._authority = Authority(folder / "pki", NODE, ["127.0.0.1", NODE_ADDRESS, API_ADDRESS])
        for client in _CLIENTS:
            self._authority.kubeconfig(folder / "pki" / f"{client}.kubeconfig", client, f"https://127.0.0.1:{API_PORT}")
        sandbox.spawn("etcd", *control_plane.etcd())
        self._api_server = self._spawn_api_server()
        self._api_port = self._forwarder.open("127.0.0.1", API_PORT)
        url = f"https://127.0.0.1:{self._api_port}"
        self.kubeconfig = self._authority.kubeconfig(folder / "kubeconfig", "admin", url)

    def _spawn_controller_manager(self) -> None:
        self._sandbox.spawn("kube-controller-manager", *control_plane.controller_manager(self._parts.kubernetes))

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
        self._forwarder.close()
        self._sandbox.close()


def makes_pods(api: Api) -> bool:
    """Whether pods can be made: they need their namespace's service account."""
    return api.get("/api/v1/namespaces/default/serviceaccounts/default") is not None
