"""The settings of one operator process. Reads no file and no environment: the command line builds it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from v4_core.errors import ConfigError
from v4_core.logs import LogFormat
from v4_operator.spec.syntax import IMAGE, KEY, LABEL, LABEL_VALUE

_PEER_KEYS = {"podSelector", "namespaceSelector", "ipBlock"}


@dataclass(frozen=True)
class OperatorConfig:
    """What to watch and what to make pods of. Raises ConfigError on values that cannot be used."""

    worker_image: str  # of workers whose V4Deployment names none
    router_image: str  # of routers whose V4Deployment names none
    namespaces: tuple[str, ...] = ()  # whose V4Deployments are served
    all_namespaces: bool = False  # serve every namespace instead
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()  # names, in the namespaces of the V4Deployments
    common_labels: Mapping[str, str] = field(default_factory=dict)  # on every child
    operator_labels: Mapping[str, str] = field(default_factory=dict)  # of the operator's own pods, for network policies
    scrape_from: tuple[Mapping[str, Any], ...] = ()  # NetworkPolicyPeers that may scrape pods whose spec names none
    lease_namespace: str = ""  # of the Lease that one replica holds; empty = the operator's own
    lease_name: str = "v4serve-operator"
    health_host: str = "0.0.0.0"  # probes come from the node
    health_port: int = 8080  # /healthz, /readyz and /metrics
    resync_seconds: float = 300.0  # until every V4Deployment was looked at again without a reason
    log_format: LogFormat = "human"  # its own, and that of the workers and routers that it makes

    def __post_init__(self) -> None:
        if bool(self.namespaces) == self.all_namespaces:
            raise ConfigError("give either --namespace, once for each namespace to serve, or --all-namespaces")
        for image in (self.worker_image, self.router_image):
            if not IMAGE.takes(image):
                raise ConfigError(f"{image!r} is no image: give --worker-image and --router-image; {IMAGE.hint}")
        for name in (*self.namespaces, *filter(None, [self.lease_namespace]), *self.lease_name.split(".")):
            if not LABEL.takes(name):
                raise ConfigError(f"{name!r} is no name of a namespace or Lease: lower-case letters, digits and '-'")
        for key, value in [*self.common_labels.items(), *self.operator_labels.items()]:
            if not isinstance(value, str) or not KEY.takes(key) or not LABEL_VALUE.takes(value):
                raise ConfigError(f"{key}={value} is no label: at most 63 letters, digits, '-', '_' and '.' a side")
        for peer in self.scrape_from:
            if not peer or not peer.keys() <= _PEER_KEYS:
                raise ConfigError(f"scrape_from: {dict(peer)} is no NetworkPolicyPeer: {', '.join(sorted(_PEER_KEYS))}")
        if not 0 <= self.health_port < 65536:
            raise ConfigError(f"health_port is {self.health_port}: give one between 0 and 65535")
        if self.resync_seconds < 1:
            raise ConfigError(f"resync_seconds is {self.resync_seconds}: give at least 1")
