"""Command lines of the control plane: etcd, API server, controller manager, scheduler. Starts nothing."""

from pathlib import Path

from tests.cluster.machine.layout import API_PORT, CRD_API_PORT, NODE_ADDRESS, PKI, POD_NETWORK, SERVICE_NETWORK

_CRD_ETCD_PORT = 12379
_TRUST = (  # who may call an API server: clients with certificates, and API servers on behalf of users
    f"--tls-cert-file={PKI}/server.crt",
    f"--tls-private-key-file={PKI}/server.key",
    f"--client-ca-file={PKI}/ca.crt",
    f"--requestheader-client-ca-file={PKI}/ca.crt",
    "--requestheader-allowed-names=front-proxy",
    "--requestheader-username-headers=X-Remote-User",
    "--requestheader-group-headers=X-Remote-Group",
    "--requestheader-extra-headers-prefix=X-Remote-Extra-",
)


def etcd(name: str = "etcd", port: int = 2379) -> list[str]:
    """One member without durability: its data go with the cluster."""
    clients, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
    return [
        "etcd",
        f"--data-dir=/run/{name}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",
    ]


def api_server(binaries: Path) -> list[str]:
    """The API server, with RBAC and the node authorizer."""
    return [
        str(binaries / "kube-apiserver"),
        "--etcd-servers=http://127.0.0.1:2379",
        "--bind-address=0.0.0.0",
        f"--advertise-address={NODE_ADDRESS}",
        f"--secure-port={API_PORT}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={PKI}/accounts.pub",
        f"--service-account-signing-key-file={PKI}/accounts.key",
        "--kubelet-preferred-address-types=InternalIP",  # the node's name is in no DNS
        f"--kubelet-client-certificate={PKI}/admin.crt",
        f"--kubelet-client-key={PKI}/admin.key",
        f"--proxy-client-cert-file={PKI}/front-proxy.crt",
        f"--proxy-client-key-file={PKI}/front-proxy.key",
        *_TRUST,
    ]


def controller_manager(binaries: Path) -> list[str]:
    """All controllers. A node may be silent for two minutes: on two busy cores its kubelet sometimes is."""
    return [
        str(binaries / "kube-controller-manager"),
        *_component("kube-controller-manager"),
        "--use-service-account-credentials",
        "--kube-api-qps=200",  # at the usual 20 its own accounts take it 6 s at the start
        "--kube-api-burst=400",
        f"--service-account-private-key-file={PKI}/accounts.key",
        f"--root-ca-file={PKI}/ca.crt",
        f"--cluster-signing-cert-file={PKI}/ca.crt",
        f"--cluster-signing-key-file={PKI}/ca.key",
        f"--cluster-cidr={POD_NETWORK}",
        "--node-monitor-grace-period=120s",
    ]


def scheduler(binaries: Path) -> list[str]:
    """The default scheduler."""
    return [str(binaries / "kube-scheduler"), *_component("kube-scheduler")]


def _component(name: str) -> list[str]:
    kubeconfig = f"{PKI}/{name}.kubeconfig"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--port=0",
    ]


def crd_etcd() -> list[str]:
    """The store of the CRD server."""
    return etcd("crd-etcd", _CRD_ETCD_PORT)


def crd_server(binary: Path) -> list[str]:
    """The CRD server, which asks the API server who a caller is and what they may do.

    Off are what would need API groups that the API server, being older, does not have.
    """
    kubeconfig = f"{PKI}/admin.kubeconfig"
    off = ["ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"]
    off += ["ValidatingAdmissionWebhook", "MutatingAdmissionWebhook"]
    return [
        str(binary),
        f"--etcd-servers=http://127.0.0.1:{_CRD_ETCD_PORT}",
        "--bind-address=0.0.0.0",
        f"--secure-port={CRD_API_PORT}",
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--disable-admission-plugins={','.join(off)}",
        "--enable-priority-and-fairness=false",
        *_TRUST,
    ]
