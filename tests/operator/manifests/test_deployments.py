"""What others do to a Deployment heals in every field that the operator sets, and stays in every other."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.operator.world import Obj, World

TWO = {"prefill": {"replicas": 2}, "decode": {"replicas": 2}, "router": {"replicas": 2}}


def _container(deployment: Obj) -> Obj:
    found: Obj = deployment["spec"]["template"]["spec"]["containers"][0]
    return found


def _set(*path: str | int, to: Any) -> Callable[[Obj], None]:
    def edit(deployment: Obj) -> None:
        at: Any = deployment
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = to

    return edit


POD = ("spec", "template", "spec")
EDITS = {
    "image": lambda deployment: _container(deployment).update(image="foreign:1"),
    "arguments": lambda deployment: _container(deployment)["args"].append("--more"),
    "environment": lambda deployment: _container(deployment)["env"][0].update(value="/elsewhere"),
    "environment removed": lambda deployment: _container(deployment)["env"].clear(),
    "resources": lambda deployment: _container(deployment).update(resources={"requests": {"cpu": "9"}}),
    "probe": lambda deployment: _container(deployment)["readinessProbe"]["httpGet"].update(port=1),
    "mounts": lambda deployment: _container(deployment)["volumeMounts"].pop(),
    "volumes": _set(*POD, "volumes", 1, "secret", "secretName", to="mine"),
    "account": _set(*POD, "serviceAccountName", to="default"),
    "grace": _set(*POD, "terminationGracePeriodSeconds", to=0),
    "labels of pods": _set("spec", "template", "metadata", "labels", "v4serve.dev/role", to="else"),
    "replicas": _set("spec", "replicas", to=0),
    "strategy": _set("spec", "strategy", "rollingUpdate", "maxUnavailable", to=2),
    "role": _set("metadata", "labels", "v4serve.dev/role", to="else"),
    "labels": lambda deployment: deployment["metadata"]["labels"].update(
        dict.fromkeys(deployment["metadata"]["labels"], "else")
    ),
    "memory": _set("metadata", "annotations", "v4serve.dev/desired", to="{}"),
    "owner": _set("metadata", "ownerReferences", to=[]),
}


def desired(deployment: Obj) -> Obj:
    metadata = deployment["metadata"]
    return {
        "spec": deployment["spec"],
        **{k: metadata[k] for k in ("name", "labels", "annotations", "ownerReferences")},
    }


@pytest.mark.parametrize("edit", EDITS)
def test_every_field_that_the_operator_sets_heals(edit: str) -> None:
    world = World(TWO)
    world.settle()
    before = copy.deepcopy([desired(deployment) for deployment in world.of("Deployment")])
    for deployment in world.of("Deployment"):
        EDITS[edit](deployment)
    world.reconcile()
    assert [desired(deployment) for deployment in world.of("Deployment")] == before
    world.reconcile()  # which takes the new generation into the status
    writes = world.writes
    world.reconcile()
    assert world.writes == writes


@pytest.mark.parametrize("edit", EDITS)
def test_so_do_the_workers_of_a_former_revision_that_still_serves(edit: str) -> None:
    world = World(TWO)
    first = world.settle().status["revision"]
    world.change({"model": {"revision": "b"}})
    world.reconcile()
    old = [d for d in world.of("Deployment") if first in d["metadata"]["name"]]
    before = copy.deepcopy([desired(deployment) for deployment in old])
    assert [deployment["spec"]["replicas"] for deployment in old] == [2, 2]
    for deployment in old:
        EDITS[edit](deployment)
    world.reconcile()
    after = [desired(d) for d in world.of("Deployment") if first in d["metadata"]["name"]]
    if edit == "memory":  # what is there is remembered anew, which is the same
        after, before = [d["spec"] for d in after], [d["spec"] for d in before]
    assert after == before


def test_what_webhooks_and_people_add_stays_and_changes_nothing() -> None:
    world = World(TWO)
    first = world.settle().status["revision"]
    for deployment in world.of("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        pod["containers"].insert(0, {"name": "mesh", "image": "mesh:1"})
        pod["initContainers"] = [{"name": "mesh-init", "image": "mesh:1"}]
        pod["volumes"].insert(0, {"name": "mesh", "emptyDir": {}})
        _container({"spec": {"template": {"spec": {"containers": pod["containers"][1:]}}}})["env"].append(
            {"name": "OTHERS", "value": "1"}
        )
        deployment["spec"]["template"]["metadata"]["annotations"]["mesh/injected"] = "yes"
        deployment["metadata"]["annotations"]["mesh/injected"] = "yes"
    before = copy.deepcopy({d["metadata"]["name"]: desired(d) for d in world.of("Deployment")})
    world.settle()
    assert {d["metadata"]["name"]: desired(d) for d in world.of("Deployment")} == before
    assert world.status["revision"] == first
    assert (world.status["decode"]["updated"], world.status["decode"]["ready"]) == (2, 2)
    world.reconcile()  # which takes the new generation into the status
    writes = world.writes
    world.reconcile()
    assert world.writes == writes
    world.change({"model": {"revision": "b"}})  # they are part of a former revision then
    world.reconcile()
    old = [desired(d) for d in world.of("Deployment") if first in d["metadata"]["name"]]
    assert [each["spec"] for each in old] == [before[each["name"]]["spec"] for each in old]
    assert all("mesh" not in each["annotations"]["v4serve.dev/desired"] for each in old)


def test_a_size_that_was_set_by_hand_does_not_steer_a_roll() -> None:
    world = World({**TWO, "rollout": {"strategy": "Replace"}})
    first = world.settle().status["revision"]
    world.change({"model": {"revision": "b"}})
    world.reconcile()
    sizes = world.sizes()
    for deployment in world.of("Deployment"):
        deployment["spec"]["replicas"] = 0 if first in deployment["metadata"]["name"] else 7
    world.reconcile()
    assert {name: size for name, size in world.sizes().items() if name != "demo-router"} == sizes
