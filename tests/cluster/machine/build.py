"""Gets every part of a Kubernetes cluster onto this machine, once; `python -m tests.cluster.machine.build` does it now.

What has been made is found again without asking any package client.
"""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.cluster.machine import cache
from tests.cluster.machine.errors import ClusterError, CommandFailed, PartMissing
from tests.cluster.machine.recipes import clients, crd_server, debian, golang, kubernetes, prometheus

CNI_PLUGINS = Path("/usr/lib/cni")

# Path or name of a command -> the Debian package that has it.
_COMMANDS = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "runc": "runc",
    str(CNI_PLUGINS / "ptp"): "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "dnsmasq": "dnsmasq-base",
    "busybox": "busybox-static",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "mount": "mount",
}


@dataclass(frozen=True)
class Parts:
    """Folders that hold the binaries."""

    kubernetes: Path
    clients: Path


def parts() -> Parts:
    """What a cluster needs, made now if it is not there. Raises PartMissing."""
    install()
    try:
        return Parts(_made(kubernetes, golang), client_tools())
    except (CommandFailed, OSError) as error:
        raise PartMissing(f"could not get a part of the cluster: {error}") from error


def install() -> None:
    """Install what a cluster needs of Debian's packages on this machine. Raises PartMissing."""
    if os.geteuid() != 0:
        raise PartMissing("needs root: containers, mounts and network namespaces are made")
    try:
        with cache.lock("packages"):
            if missing := [package for command, package in _COMMANDS.items() if not shutil.which(command)]:
                debian.install(*missing)
    except (CommandFailed, OSError) as error:
        raise PartMissing(f"could not install a part of the cluster: {error}") from error


def client_tools() -> Path:
    """Folder with kubectl and helm. Raises CommandFailed, OSError."""
    return _made(clients)


def prometheus_tools() -> Path:
    """Folder with prometheus and promtool. Raises PartMissing."""
    try:
        return _made(prometheus)
    except (CommandFailed, OSError) as error:
        raise PartMissing(f"Prometheus could not be had: {error}") from error


def crd_server_binary() -> Path:
    """The CRD server of a current Kubernetes. Raises PartMissing: it comes from Debian unstable."""
    try:
        return _made(crd_server, golang) / crd_server.BINARIES[0]
    except (CommandFailed, OSError) as error:
        raise PartMissing(f"the current CRD server could not be built: {error}") from error


def _made(recipe: ModuleType, *beside: ModuleType) -> Path:
    """What a recipe makes; `beside` are other modules that decide what that is."""
    name = recipe.__name__.rpartition(".")[2].replace("_", "-")
    texts = [Path(module.__file__).read_bytes() for module in (recipe, *beside) if module.__file__]
    return cache.entry(name, cache.digest(*texts), recipe.make)


if __name__ == "__main__":
    try:
        print(parts())
        print(crd_server_binary())
    except ClusterError as problem:
        sys.exit(str(problem))
