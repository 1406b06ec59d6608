"""Network policies by what they allow, and disruption budgets."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.operator.world import SETTINGS, Obj, World, v4deployment
from v4_operator.manifests.names import labels
from v4_operator.manifests.policies import disruption_budgets
from v4_operator.manifests.settings import Settings
from v4_operator.observed.objects import holds

MODELS, OTHER = "models", "other"
SPEC: Obj = {
    "model": {"huggingFace": {"repository": "a/b"}},
    "networkPolicy": {"scrapeFrom": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]},
}


@dataclass(frozen=True)
class Peer:
    """A pod, or an address outside the cluster."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    address: str = ""


def pod(role: str, name: str = "demo", namespace: str = MODELS) -> Peer:
    revision = "r" if role in ("prefill", "decode") else ""
    own = labels(v4deployment(name=name), role, revision)
    return Peer(namespace, own, {"kubernetes.io/metadata.name": namespace})


PREFILL, DECODE, ROUTER, FETCH = (pod(role) for role in ("prefill", "decode", "router", "download"))
STRANGER = Peer(MODELS, {"app": "web"}, {"kubernetes.io/metadata.name": MODELS})
OPERATOR = Peer("v4serve", {"app": "operator"}, {"kubernetes.io/metadata.name": "v4serve"})
IMPOSTOR = Peer(OTHER, {"app": "operator"}, {"kubernetes.io/metadata.name": OTHER})
PROMETHEUS = Peer("observe", {"app": "prometheus"}, {"team": "monitoring"})
OPERATORS_CHOICE = Peer("platform", {"app": "prometheus"}, {"team": "platform"})
DNS = Peer("kube-system", {"k8s-app": "kube-dns"}, {"kubernetes.io/metadata.name": "kube-system"})
OTHER_PREFILL, OTHER_ROUTER = pod("prefill", name="another"), pod("router", name="another")
SAME_NAME_ELSEWHERE = pod("router", namespace=OTHER)
WORLD = Peer(address="203.0.113.7")
API_SERVER = Peer(address="10.0.0.1")

FLOWS = [
    (ROUTER, PREFILL, 5101, True),
    (ROUTER, DECODE, 5102, True),
    (ROUTER, DECODE, 5101, False),
    (DECODE, PREFILL, 5101, True),
    (PREFILL, DECODE, 5102, True),
    (DECODE, DECODE, 5102, True),
    (STRANGER, PREFILL, 5101, False),
    (STRANGER, DECODE, 5102, False),
    (OTHER_PREFILL, PREFILL, 5101, False),
    (OTHER_ROUTER, PREFILL, 5101, False),
    (SAME_NAME_ELSEWHERE, PREFILL, 5101, False),
    (WORLD, DECODE, 5102, False),
    (STRANGER, PREFILL, 9101, False),
    (ROUTER, PREFILL, 9101, False),
    (PROMETHEUS, PREFILL, 9101, True),
    (PROMETHEUS, DECODE, 9102, True),
    (PROMETHEUS, ROUTER, 9100, True),
    (PROMETHEUS, PREFILL, 5101, False),
    (STRANGER, ROUTER, 8000, True),
    (WORLD, ROUTER, 8000, True),
    (STRANGER, ROUTER, 9100, False),
    (OPERATOR, ROUTER, 9100, True),
    (IMPOSTOR, ROUTER, 9100, False),
    (OPERATOR, PREFILL, 9101, False),
    (PREFILL, WORLD, 443, False),
    (DECODE, STRANGER, 80, False),
    (DECODE, ROUTER, 8000, False),
    (DECODE, API_SERVER, 443, False),
    (DECODE, DNS, 53, True),
    (DECODE, DNS, 5353, True),
    (ROUTER, API_SERVER, 6443, True),
    (ROUTER, DNS, 53, True),
    (FETCH, WORLD, 443, True),
    (FETCH, PREFILL, 5101, False),
    (STRANGER, FETCH, 80, False),
]


@pytest.mark.parametrize(("source", "target", "port", "allowed"), FLOWS)
def test_who_may_talk_to_whom(source: Peer, target: Peer, port: int, allowed: bool) -> None:
    assert may(policies(), source, target, port) is allowed


@pytest.mark.parametrize(
    ("named", "source", "allowed"),
    [
        ([], OPERATORS_CHOICE, True),
        ([], PROMETHEUS, False),
        (SPEC["networkPolicy"]["scrapeFrom"], OPERATORS_CHOICE, False),
        (SPEC["networkPolicy"]["scrapeFrom"], PROMETHEUS, True),
    ],
)
def test_who_scrapes_is_what_the_spec_says_else_the_operator(named: list[Obj], source: Peer, allowed: bool) -> None:
    settings = replace(SETTINGS, scrape_from=({"namespaceSelector": {"matchLabels": {"team": "platform"}}},))
    rules = policies(settings, {**SPEC, "networkPolicy": {"scrapeFrom": named}})
    for target, port in ((ROUTER, 9100), (PREFILL, 9101), (DECODE, 9102)):
        assert may(rules, source, target, port) is allowed
    assert not may(rules, OPERATORS_CHOICE, PREFILL, 5101)


def test_names_of_hosts_are_asked_for_by_udp() -> None:
    assert may(policies(), DECODE, DNS, 53, "UDP")
    assert not may(policies(), DECODE, DNS, 443, "UDP")


@pytest.mark.parametrize(
    ("settings", "source", "allowed"),
    [
        (replace(SETTINGS, operator_namespace=""), STRANGER, True),  # operator outside the cluster
        (replace(SETTINGS, operator_namespace=MODELS), Peer(MODELS, {"app": "operator"}), True),
        (replace(SETTINGS, operator_namespace=MODELS), OPERATOR, False),
        (replace(SETTINGS, server_version=(1, 20)), Peer("v4serve", {"app": "operator"}), True),  # no label of the name
        (replace(SETTINGS, server_version=(1, 20)), STRANGER, False),
    ],
)
def test_wherever_the_operator_is_it_can_ask_routers(settings: Settings, source: Peer, allowed: bool) -> None:
    assert may(policies(settings), source, ROUTER, 9100) is allowed


def test_pods_of_pairs_are_covered_while_a_placement_changes() -> None:
    world = World()
    world.settle()
    world.change({"placement": "shared"})
    world.reconcile()
    assert {"demo-pair", "demo-prefill", "demo-decode"} <= {p["metadata"]["name"] for p in world.of("NetworkPolicy")}
    rules = world.of("NetworkPolicy")
    pair = Peer(MODELS, labels(world.v4d, "pair", "r"))
    assert may(rules, ROUTER, pair, 5101)
    assert may(rules, ROUTER, pair, 5102)
    assert may(rules, pair, pair, 5101)
    world.settle()
    assert {p["metadata"]["name"] for p in world.of("NetworkPolicy")} == {"demo-pair", "demo-router"}


def test_budgets_let_a_node_be_drained() -> None:
    v1 = disruption_budgets(v4deployment(), SETTINGS, [("prefill", "r"), ("decode", "r")])
    assert [budget["metadata"]["name"] for budget in v1] == ["demo-prefill-r", "demo-decode-r", "demo-router"]
    for budget in v1:
        assert budget["apiVersion"] == "policy/v1"
        assert budget["spec"]["maxUnavailable"] == 1, "with one pod it may be evicted"
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    old = Settings("w", "r", server_version=(1, 20), kinds=frozenset({("policy/v1beta1", "PodDisruptionBudget")}))
    for budget in disruption_budgets(v4deployment(), old, [("pair", "r")]):
        assert budget["apiVersion"] == "policy/v1beta1"
        assert "unhealthyPodEvictionPolicy" not in budget["spec"]


def test_a_revision_that_does_not_start_lets_pods_of_another_be_evicted() -> None:
    world = World({"prefill": {"replicas": 2}, "decode": {"replicas": 2}})
    first = world.settle().status["revision"]
    world.objects["PodDisruptionBudget", "demo-decode"] = _former_budget(world)
    world.change({"model": {"revision": "b"}})
    second = world.reconcile().status["revision"]
    world.broken.add(second)
    world.tick(5)
    world.reconcile()
    assert len(world.pods(second)) == 4
    for role in ("prefill", "decode"):
        (serving,) = _allowed(world, world.pods(first, role)[0])
        assert serving == 1
    for each in world.pods(role="router"):
        assert len(_allowed(world, each)) == 1
    world.broken.clear()
    world.settle()
    names = {budget["metadata"]["name"] for budget in world.of("PodDisruptionBudget")}
    assert names == {f"demo-prefill-{second}", f"demo-decode-{second}", "demo-router"}


def _former_budget(world: World) -> Obj:
    """As an operator made it that had one for all revisions."""
    made = copy.deepcopy(next(b for b in world.of("PodDisruptionBudget") if "decode" in b["metadata"]["name"]))
    made["metadata"]["name"] = "demo-decode"
    made["spec"]["selector"]["matchLabels"].pop("v4serve.dev/revision")
    return made


def _allowed(world: World, evicted: Obj) -> list[int]:
    """Evictions that each budget of this pod allows, as its controller counts."""
    counts = []
    for budget in world.of("PodDisruptionBudget"):
        if _matches(budget["spec"]["selector"], evicted["metadata"]["labels"]):
            pods = [p for p in world.of("Pod") if _matches(budget["spec"]["selector"], p["metadata"]["labels"])]
            ready = sum(holds(p, "Ready") for p in pods)
            counts.append(max(0, ready - len(pods) + budget["spec"]["maxUnavailable"]))
    return counts


def policies(settings: Settings = SETTINGS, spec: Obj = SPEC) -> list[Obj]:
    world = World(spec, settings)
    return [obj for obj in world.desired_state().objects if obj["kind"] == "NetworkPolicy"]


def may(rules: Iterable[Obj], source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether a cluster that enforces network policies lets this connection through."""
    out = [rule for rule in rules if _selects(rule, source) and "Egress" in rule["spec"]["policyTypes"]]
    into = [rule for rule in rules if _selects(rule, target) and "Ingress" in rule["spec"]["policyTypes"]]
    leaves = not out or any(_lets(r, "egress", "to", target, port, protocol) for r in out)
    arrives = not into or any(_lets(r, "ingress", "from", source, port, protocol) for r in into)
    return leaves and arrives


def _selects(policy: Obj, peer: Peer) -> bool:
    return peer.namespace == policy["metadata"]["namespace"] and _matches(policy["spec"]["podSelector"], peer.labels)


def _lets(policy: Obj, direction: str, key: str, peer: Peer, port: int, protocol: str) -> bool:
    own = policy["metadata"]["namespace"]
    return any(
        ("ports" not in rule or {"port": port, "protocol": protocol} in rule["ports"])
        and (key not in rule or any(_is(wanted, peer, own) for wanted in rule[key]))
        for rule in policy["spec"].get(direction, ())
    )


def _is(wanted: Obj, peer: Peer, own_namespace: str) -> bool:
    if not peer.namespace:
        return False
    if "namespaceSelector" in wanted:
        if not _matches(wanted["namespaceSelector"], peer.namespace_labels):
            return False
    elif peer.namespace != own_namespace:
        return False
    return _matches(wanted.get("podSelector", {}), peer.labels)


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}
    wanted: Mapping[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()
