"""Network policies and pod disruption budgets. Pure.

A cluster's network plugin may ignore network policies; the component token protects workers in any case. Kubelet's
probes come from the node, whose traffic network plugins always admit. Egress of routers and of the download Job is not
restricted: routers need the API server and the Job needs a hub or mirror, whose addresses and ports are unknown here.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from v4_core.kubernetes import MONITORING_PORTS, ROUTER_PORT, WORKER_PORTS, Json
from v4_operator.manifests.names import DOWNLOAD, child, metadata, selector
from v4_operator.manifests.pods import present
from v4_operator.manifests.router_objects import ROUTER
from v4_operator.manifests.settings import Settings
from v4_operator.manifests.workers import CONTAINERS
from v4_operator.spec.v4deployment import V4Deployment

_DNS_PORTS = (53, 5353)  # OpenShift's DNS pods listen on 5353, and policies match a pod's port, not its Service's
_NAMESPACE_NAME = "kubernetes.io/metadata.name"  # label of every namespace since Kubernetes 1.21


def disruption_budgets(v4d: V4Deployment, settings: Settings, pools: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Budgets that allow one eviction per pool at a time, even of a pool's only pod, so that nodes can be drained.

    `pools` has the role and the revision of each worker pool. Each revision has its own budget: a budget counts unready
    pods as disrupted, so the pods of a starting revision would otherwise block evictions of another revision's pods.
    """
    spec: dict[str, Any] = {"maxUnavailable": 1}
    if settings.server_version >= (1, 27):
        spec["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    return [
        {
            "apiVersion": _budget_version(settings),
            "kind": "PodDisruptionBudget",
            "metadata": metadata(v4d, settings, child(v4d, *filter(None, (role, revision))), role, revision),
            "spec": {**spec, "selector": {"matchLabels": selector(v4d, role, revision)}},
        }
        for role, revision in (*pools, (ROUTER, ""))
    ]


def _budget_version(settings: Settings) -> str:
    old, new = (f"policy/{version}" for version in ("v1beta1", "v1"))
    kind = "PodDisruptionBudget"
    return old if (old, kind) in settings.kinds and (new, kind) not in settings.kinds else new


def network_policies(v4d: V4Deployment, settings: Settings, pools: Iterable[str]) -> list[dict[str, Any]]:
    """Policies for worker pods of the roles `pools`, for routers, and for the download Job."""
    policies = [_worker_policy(v4d, settings, role) for role in pools]
    policies.append(_policy(v4d, settings, ROUTER, _router_ingress(v4d, settings), None))
    if v4d.spec.model.hugging_face:
        policies.append(_policy(v4d, settings, DOWNLOAD, [], None))
    return policies


def _worker_policy(v4d: V4Deployment, settings: Settings, role: str) -> dict[str, Any]:
    """Allows ingress from routers and workers, and egress to workers and DNS."""
    workers = [{"podSelector": {"matchLabels": selector(v4d, other)}} for other in CONTAINERS]
    router = {"podSelector": {"matchLabels": selector(v4d, ROUTER)}}
    ingress = [_rule("from", [router, *workers], [WORKER_PORTS[worker] for worker in CONTAINERS[role]])]
    ingress += _scrapers(v4d, settings, [MONITORING_PORTS[worker] for worker in CONTAINERS[role]])
    dns = {"ports": [{"port": port, "protocol": protocol} for port in _DNS_PORTS for protocol in ("UDP", "TCP")]}
    egress = [_rule("to", workers, list(WORKER_PORTS.values())), dns]
    return _policy(v4d, settings, role, ingress, egress)


def _router_ingress(v4d: V4Deployment, settings: Settings) -> list[dict[str, Any]]:
    """Allows clients from anywhere, and scrapers and the operator at the monitoring port."""
    monitoring = MONITORING_PORTS[ROUTER]
    operator = _rule("from", _operator(v4d, settings), [monitoring])
    return [_rule("from", [], [ROUTER_PORT]), operator, *_scrapers(v4d, settings, [monitoring])]


def _operator(v4d: V4Deployment, settings: Settings) -> list[Json]:
    """Peers that match the operator's pods; empty, which allows anyone, if the operator runs outside the cluster."""
    if not settings.operator_namespace:
        return []
    pods = {"podSelector": present({"matchLabels": dict(settings.operator_labels)})}
    if settings.operator_namespace == v4d.namespace:
        return [pods]
    named = {"matchLabels": {_NAMESPACE_NAME: settings.operator_namespace}}
    return [{"namespaceSelector": named if settings.server_version >= (1, 21) else {}, **pods}]


def _scrapers(v4d: V4Deployment, settings: Settings, ports: Sequence[int]) -> list[dict[str, Any]]:
    peers = v4d.spec.scrape_from or settings.scrape_from
    return [_rule("from", peers, ports)] if peers else []


def _rule(direction: str, peers: Sequence[Json], ports: Sequence[int]) -> dict[str, Any]:
    """A rule for TCP from or to these peers; from or to anyone if `peers` is empty."""
    return present({direction: list(peers), "ports": [{"port": port, "protocol": "TCP"} for port in ports]})


def _policy(
    v4d: V4Deployment, settings: Settings, role: str, ingress: Sequence[Json], egress: Sequence[Json] | None
) -> dict[str, Any]:
    """The policy of a role's pods; `egress` None does not restrict egress."""
    types = ["Ingress"] if egress is None else ["Ingress", "Egress"]
    rules = present({"ingress": list(ingress), "egress": list(egress or ())})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(v4d, settings, child(v4d, role), role),
        "spec": {"podSelector": {"matchLabels": selector(v4d, role)}, "policyTypes": types, **rules},
    }
