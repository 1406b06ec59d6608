"""Configuration and command lines of the node: containerd, its pod network, kubelet, kube-proxy. Starts nothing."""

import json
from pathlib import Path

import yaml

from tests.cluster.machine.build import CNI_PLUGINS
from tests.cluster.machine.layout import (
    CLUSTER_DOMAIN,
    IMAGES,
    KUBE_PROXY_PORT,
    NODE,
    NODE_ADDRESS,
    NODE_DEVICE,
    PKI,
    POD_NETWORK,
    SERVICE_NETWORK,
)
from tests.cluster.machine.tools_image import PAUSE

CONTAINERD = ("containerd", "--config", "/run/containerd.toml")


def network_commands() -> list[list[str]]:
    """What gives the namespace a node's network: an address of its own, and a way for the addresses of Services.

    Service addresses are rewritten on their way out, but a packet needs a route before that can happen. There is no
    other route: who asks for a cloud's services, as the kubelet does at its start, is refused at once. A bridge without
    ports serves as the device: not every kernel has the dummy one.
    """
    return [
        ["ip", "link", "set", "lo", "up"],
        ["ip", "link", "add", NODE_DEVICE, "type", "bridge"],
        ["ip", "address", "add", f"{NODE_ADDRESS}/32", "dev", NODE_DEVICE],
        ["ip", "link", "set", NODE_DEVICE, "up"],
        ["ip", "route", "add", SERVICE_NETWORK, "dev", NODE_DEVICE, "src", NODE_ADDRESS],
        ["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.route_localnet=1"],
    ]


def write_containerd(folder: Path, *, pods: bool) -> None:
    """containerd.toml in the sandbox's folder; without `pods` it only keeps images.

    A negative out-of-memory score needs a capability that root in a container lacks.
    """
    cri = f"""
disabled_plugins = {[] if pods else ["io.containerd.grpc.v1.cri"]}
version = 2
root = "{IMAGES}"
state = "/run/containerd"
[plugins."io.containerd.internal.v1.opt"]
  path = "/run/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "/run/cni"
"""
    (folder / "containerd.toml").write_text(cri)


def write_pod_network(folder: Path) -> None:
    """Each pod is linked to the node by a device pair: all its traffic is routed and passes kube-proxy's rules."""
    addresses = {"type": "host-local", "dataDir": "/run/pod-addresses", "ranges": [[{"subnet": POD_NETWORK}]]}
    plugin = {"type": "ptp", "ipMasq": False, "ipam": addresses | {"routes": [{"dst": "0.0.0.0/0"}]}}
    (folder / "cni").mkdir()
    configuration = {"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]}
    (folder / "cni" / "pods.conflist").write_text(json.dumps(configuration))


def write_kubelet(folder: Path, cgroup: str) -> None:
    """kubelet.yaml in the sandbox's folder. All pods stay in the control group; images are never collected."""
    (folder / "resolv.conf").touch()
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": f"{PKI}/ca.crt"},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "tlsCertFile": f"{PKI}/server.crt",
        "tlsPrivateKeyFile": f"{PKI}/server.key",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "clusterDNS": [NODE_ADDRESS],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": "/run/resolv.conf",
        "nodeStatusUpdateFrequency": "2s",  # and so not 10 s until it is seen that the node is ready
        "nodeStatusReportFrequency": "5m",
        "failSwapOn": False,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "volumePluginDir": "/run/volume-plugins",
    }
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(configuration))


def kubelet(binaries: Path) -> list[str]:
    """The kubelet, over containerd."""
    return [
        str(binaries / "kubelet"),
        "--config=/run/kubelet.yaml",
        f"--kubeconfig={PKI}/kubelet.kubeconfig",
        f"--hostname-override={NODE}",
        f"--node-ip={NODE_ADDRESS}",
        "--container-runtime=remote",
        "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
        "--root-dir=/run/kubelet",
        "--cert-dir=/run/kubelet/pki",
    ]


def kube_proxy(binaries: Path) -> list[str]:
    """kube-proxy by iptables; limits of connection tracking belong to the machine and stay as they are."""
    return [
        str(binaries / "kube-proxy"),
        f"--kubeconfig={PKI}/kube-proxy.kubeconfig",
        f"--hostname-override={NODE}",
        "--proxy-mode=iptables",
        f"--healthz-bind-address=127.0.0.1:{KUBE_PROXY_PORT}",
        f"--cluster-cidr={POD_NETWORK}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
        "--iptables-min-sync-period=0s",
    ]
