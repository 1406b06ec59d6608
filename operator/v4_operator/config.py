"""The settings of an operator process. The command line builds them; this module reads no file and no environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from v4_core.errors import ConfigError
from v4_core.logs import LogFormat
from v4_core.settings import Setting
from v4_operator.spec.syntax import IMAGE, KEY, LABEL, LABEL_VALUE

_PEER_KEYS = {"podSelector", "namespaceSelector", "ipBlock"}


@dataclass(frozen=True)
class OperatorConfig:
    """The settings of an operator process. Raises ConfigError if a value is invalid."""

    worker_image: Annotated[str, Setting("Image of workers, for V4Deployments that do not name one.")]
    router_image: Annotated[str, Setting("Image of routers, for V4Deployments that do not name one.")]
    namespaces: Annotated[tuple[str, ...], Setting("Namespace to watch; repeat for more.", "--namespace")] = ()
    all_namespaces: Annotated[bool, Setting("Watch every namespace.")] = False
    pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"], Setting("When nodes pull images.")] = (
        "IfNotPresent"
    )
    pull_secrets: Annotated[
        tuple[str, ...],
        Setting("Image pull secret in the V4Deployments' namespaces; repeat for more.", "--pull-secret"),
    ] = ()
    common_labels: Annotated[
        Mapping[str, str],
        Setting("Label key=value for every object that the operator creates; repeat for more.", "--common-label"),
    ] = field(default_factory=dict)
    operator_labels: Annotated[
        Mapping[str, str],
        Setting(
            "Label key=value by which network policies select the operator's own pods; repeat for more. Without any, "
            "they select its namespace.",
            "--operator-label",
        ),
    ] = field(default_factory=dict)
    scrape_from: Annotated[
        tuple[Mapping[str, Any], ...],
        Setting(
            "NetworkPolicyPeer, as JSON in the flag, that may scrape metrics of V4Deployments that name none; repeat "
            "for more."
        ),
    ] = ()
    lease_namespace: Annotated[
        str,
        Setting("Namespace of the leader election's Lease; by default the operator's own."),
    ] = ""
    lease_name: Annotated[str, Setting("Name of the leader election's Lease.")] = "v4serve-operator"
    health_host: Annotated[str, Setting("Listen address of /healthz, /readyz and /metrics.")] = "0.0.0.0"
    health_port: Annotated[int, Setting("Port of /healthz, /readyz and /metrics.")] = 8080
    resync_seconds: Annotated[float, Setting("Seconds after which a V4Deployment is reconciled without a change.")] = (
        300.0
    )
    log_format: Annotated[
        LogFormat,
        Setting("Format of the log of the operator and of the pods that it creates: human, or json."),
    ] = "human"

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
