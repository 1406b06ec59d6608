"""A cluster as tests see it: the same methods over those made here and over any other (external.py).

Made here are a control plane alone (local_control_plane.py), and one with a node whose pods run (local.py).
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar, cast

from tests.cluster.machine.commands import run
from tests.cluster.machine.errors import ClusterError, CommandFailed
from tests.cluster.machine.waiting import wait

T = TypeVar("T")


class Cluster(ABC):
    """One API server with its controllers."""

    kubeconfig: Path  # of an administrator; works from this machine

    def __init__(self, tools: Path, scratch: Path) -> None:
        """`tools` has kubectl and helm; they keep their caches in `scratch`."""
        self.tools = tools
        self._scratch = scratch

    @property
    def environment(self) -> dict[str, str]:
        """Environment for a command that uses this cluster: its kubeconfig, kubectl and helm first on the PATH."""
        own = {f"HELM_{kind}_HOME": str(self._scratch / f"helm-{kind.lower()}") for kind in ("CACHE", "CONFIG", "DATA")}
        own |= {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self._scratch / "kubectl")}
        return os.environ | own | {"PATH": f"{self.tools}:{os.environ['PATH']}"}

    def kubectl(self, *args: str, input: str | None = None, check: bool = True) -> str:  # noqa: A002 as subprocess.run
        """Standard output of kubectl, with `input` as standard input. Raises CommandFailed when `check`."""
        return run(["kubectl", *args], text=input, env=self.environment, check=check)

    def helm(self, *args: str, input: str | None = None, check: bool = True) -> str:  # noqa: A002 as subprocess.run
        """Standard output of helm. Raises CommandFailed when `check`."""
        return run(["helm", *args], text=input, env=self.environment, check=check)

    def get(self, *args: str) -> dict[str, Any]:
        """The object, or the list, that `kubectl get ARGS` answers. Raises CommandFailed."""
        return cast(dict[str, Any], json.loads(self.kubectl("get", *args, "--output=json")))

    def pods(self, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """Pods of a namespace whose labels match, oldest first."""
        items = self.get("pods", "--namespace", namespace, "--selector", selector)["items"]
        return sorted(items, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def wait(self, condition: Callable[[], T], seconds: float, what: str) -> T:
        """The first true value of `condition`; `what` completes "waited in vain until". Raises TimedOut."""
        return wait(condition, seconds, what)

    @abstractmethod
    def stop_api_server(self) -> None:
        """Stop it; pods, nodes and data stay."""

    @abstractmethod
    def start_api_server(self) -> None:
        """Start it again over the same data, and wait until it is ready."""

    def restart_api_server(self) -> None:
        """Stop it and start it again."""
        self.stop_api_server()
        self.start_api_server()

    @abstractmethod
    def close(self) -> None:
        """Give up what was made for this run."""

    def dump(self, folder: Path) -> None:
        """Write the state of everything into `folder`: objects, events, descriptions, logs of all pods."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, args in {
            "objects.txt": ("get", "all,ingress,configmap,secret,pvc,pdb,networkpolicy,node", "-A", "--output=wide"),
            "events.txt": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
            "pods.txt": ("describe", "pods", "-A"),
            "nodes.txt": ("describe", "nodes"),
            "v4deployments.yaml": ("get", "v4deployments.v4serve.dev", "-A", "--output=yaml", "--ignore-not-found"),
        }.items():
            (folder / name).write_text(self._kubectl_and_errors(*args))
        for pod in self.get("pods", "--all-namespaces")["items"]:
            metadata = pod["metadata"]
            args = (metadata["name"], "--namespace", metadata["namespace"], "--all-containers", "--prefix")
            stem = f"{metadata['namespace']}.{metadata['name']}"
            (folder / f"{stem}.log").write_text(self._kubectl_and_errors("logs", *args))
            if any(status.get("restartCount") for status in pod["status"].get("containerStatuses", [])):
                (folder / f"{stem}.previous.log").write_text(self._kubectl_and_errors("logs", *args, "--previous"))

    def _kubectl_and_errors(self, *args: str) -> str:
        try:
            return self.kubectl(*args)
        except CommandFailed as error:
            return error.output


class ServingCluster(Cluster):
    """A cluster whose pods run."""

    image: str  # reference of the project's image

    @abstractmethod
    def connect(self, namespace: str, service: str, port: int) -> AbstractContextManager[str]:
        """URL on this machine's loopback of a Service's port."""


def service_port(service: dict[str, Any], port: int) -> int:
    """The port, if the Service has it. Raises ClusterError."""
    ports = [entry["port"] for entry in service["spec"]["ports"]]
    if port not in ports:
        raise ClusterError(f"Service {service['metadata']['name']} has no port {port}, but {ports}")
    return port
