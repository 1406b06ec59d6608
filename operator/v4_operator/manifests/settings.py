"""The operator's settings and the API server's properties, on which manifests depend beside the spec. A pure record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from v4_core.kubernetes import Json
from v4_core.logs import LogFormat


@dataclass(frozen=True)
class Settings:
    """Settings of the operator process and properties of the API server."""

    worker_image: str
    router_image: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    common_labels: Mapping[str, str] = field(default_factory=dict)  # on every child
    operator_namespace: str = ""  # namespace of the operator's pods; empty = the operator runs outside the cluster
    operator_labels: Mapping[str, str] = field(default_factory=dict)  # labels of the operator's pods
    scrape_from: Sequence[Json] = ()  # NetworkPolicyPeers that may read monitoring ports if a spec names none
    log_format: LogFormat = "human"  # of workers and routers
    server_version: tuple[int, int] = (1, 20)  # major, minor
    kinds: frozenset[tuple[str, str]] = frozenset()  # (apiVersion, kind) that the server has
