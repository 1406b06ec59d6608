"""The settings of an operator process. The command line builds them; this module reads no file and no environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from v4_core.errors import ConfigError
from v4_core.logs import LogFormat
from v4_operator.spec.syntax import IMAGE, KEY, LABEL, LABEL_VALUE

_PEER_KEYS = {"podSelector", "namespaceSelector", "ipBlock"}


@dataclass(frozen=True)
class OperatorConfig:
    """The settings of an operator process. Raises ConfigError if a value is invalid."""

    worker_image: str  # image of workers whose V4Deployment names none
    router_image: str  # image of routers whose V4Deployment names none
    namespaces: tuple[str, ...] = ()  # namespaces whose V4Deployments are served
    all_namespaces: bool = False  # serve every namespace instead
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()  # names of Secrets in the namespaces of the V4Deployments
    common_labels: Mapping[str, str] = field(default_factory=dict)  # labels of every child
    operator_labels: Mapping[str, str] = field(default_factory=dict)  # of the operator's pods, for network policies
    scrape_from: tuple[Mapping[str, Any], ...] = ()  # NetworkPolicyPeers that may scrape pods whose spec names none
    lease_namespace: str = ""  # namespace of the Lease of the leader election; empty = the operator's own
    lease_name: str = "v4serve-operator"  # name of that Lease
    health_host: str = "0.0.0.0"  # the kubelet's probes come from the node
    health_port: int = 8080  # /healthz, /readyz and /metrics
    resync_seconds: float = 300.0  # interval after which every V4Deployment is reconciled without a change
    log_format: LogFormat = "human"  # of the operator, and of the workers and routers that it creates

    def __post_init__(self) -> None:
        if bool(self.namespaces) == self.all_namespaces:
            raise ConfigError("give either --namespace, once for each namespace to serve, or --all-namespaces")
        for image in (self.worker_image, self.router_image):
            if not IMAGE.takes(image):
                raise ConfigError(f"{image!r} is not an image: give --worker-image and --router-image; {IMAGE.hint}")
        for name in (*self.namespaces, *filter(None, [self.lease_namespace]), *self.lease_name.split(".")):
            if not LABEL.takes(name):
                raise ConfigError(f"{name!r} is not a namespace or Lease name: use lower-case letters, digits and '-'")
        for key, value in [*self.common_labels.items(), *self.operator_labels.items()]:
            if not isinstance(value, str) or not KEY.takes(key) or not LABEL_VALUE.takes(value):
                raise ConfigError(f"{key}={value} is not a label: at most 63 letters, digits, '-', '_', '.' a side")
        for peer in self.scrape_from:
            if not peer or not peer.keys() <= _PEER_KEYS:
                keys = ", ".join(sorted(_PEER_KEYS))
                raise ConfigError(f"scrape_from: {dict(peer)} is not a NetworkPolicyPeer: give one or more of {keys}")
        if not 0 <= self.health_port < 65536:
            raise ConfigError(f"health_port is {self.health_port}: give a port from 0 to 65535")
        if self.resync_seconds < 1:
            raise ConfigError(f"resync_seconds is {self.resync_seconds}: give at least 1 second")
