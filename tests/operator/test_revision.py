"""Which change of the spec restarts what, told by the templates that are rendered."""

from dataclasses import replace
from typing import Any

import pytest

from tests.operator.world import SETTINGS, Obj, World, merged, v4deployment
from v4_core.kubernetes import REVISION_LABEL
from v4_operator.plan import plan
from v4_operator.records import Observed
from v4_operator.revision import revision
from v4_operator.spec import Spec

DEMO: Obj = {"model": {"demo": {}}}
PVC: Obj = {"model": {"pvc": {"claimName": "weights"}}}

CLASSES: list[tuple[str, Obj, Obj]] = [
    ("exchange", {}, {"image": "worker:2"}),
    ("exchange", {}, {"model": {"revision": "2"}}),
    ("exchange", PVC, {"model": {"pvc": {"claimName": "others"}}}),
    ("exchange", PVC, {"model": {"pvc": {"path": "flash"}}}),
    ("exchange", {}, {"cache": {"format": "bf16"}}),
    ("exchange", {}, {"cache": {"indexFormat": "bf16"}}),
    ("exchange", {}, {"placement": "shared"}),
    ("pod", {}, {"model": {"contextLength": 4096}}),
    ("pod", {}, {"cache": {"memoryPercent": 40}}),
    ("pod", {}, {"cache": {"maxSequences": 8}}),
    ("pod", {}, {"decode": {"resources": {"requests": {"cpu": "2"}}}}),
    ("pod", {}, {"decode": {"pod": {"env": [{"name": "A", "value": "1"}]}}}),
    ("pod", {}, {"prefill": {"pod": {"labels": {"team": "a"}}}}),
    ("pod", {}, {"transfer": {"leaseSeconds": 60}}),
    ("pod", {}, {"rollout": {"drainSeconds": 60}}),
    ("none", {}, {"model": {"servedName": "other"}}),
    ("none", {}, {"prefill": {"replicas": 3}, "decode": {"replicas": 0}}),
    ("none", {}, {"router": {"limits": {"maxRequests": 9}}}),
    ("none", {}, {"router": {"replicas": 2, "image": "router:2"}}),
    ("none", {}, {"transfer": {"onFailure": "fail"}}),
    ("none", {}, {"rollout": {"strategy": "Replace"}}),
    ("none", {}, {"networkPolicy": {"scrapeFrom": [{"podSelector": {}}]}}),
]


def workers(spec: Obj) -> dict[str, Any]:
    """Templates of worker Deployments by name."""
    made = plan(v4deployment(spec), Observed(World().now), SETTINGS)
    found = [obj for obj in made.objects if obj["kind"] == "Deployment"]
    return {d["metadata"]["name"]: d["spec"]["template"] for d in found if REVISION_LABEL in d["metadata"]["labels"]}


def change_class(before: dict[str, Any], after: dict[str, Any]) -> str:
    if before.keys() != after.keys():
        assert not before.keys() & after.keys(), "both pools get a new revision, or none"
        return "exchange"
    return "none" if before == after else "pod"


@pytest.mark.parametrize(("expected", "base", "change"), CLASSES, ids=[f"{c[0]}-{c[2]}" for c in CLASSES])
def test_class_of_a_change(expected: str, base: Obj, change: Obj) -> None:
    assert change_class(workers(base or DEMO), workers(merged(base or DEMO, change))) == expected


def test_a_pod_change_of_one_pool_leaves_the_other_alone() -> None:
    before, after = workers({}), workers({"decode": {"resources": {"requests": {"cpu": "2"}}}})
    assert [name for name in before if before[name] != after[name]] == [name for name in before if "decode" in name]


def test_labels_and_defaults_of_the_operator_restart_nothing() -> None:
    world = World()
    world.settle()
    pods = {pod["metadata"]["name"] for pod in world.of("Pod")}
    world.settings = replace(
        world.settings, common_labels={"team": "a"}, worker_image="worker:9", router_image="router:9"
    )
    made = world.settle()
    assert {pod["metadata"]["name"] for pod in world.of("Pod")} == pods
    assert made.status["image"] == "worker:1"
    assert world.get("Service", "demo")["metadata"]["labels"]["team"] == "a"


def test_a_revision_is_ten_digits_that_stay() -> None:
    """A change of this value restarts the workers of everyone who upgrades the operator."""
    assert revision(Spec(), "worker:1") == "cc95b2e006"
