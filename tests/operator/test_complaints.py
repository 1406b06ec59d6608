"""Bugs reported of other operators that this one must not have; see docs/complaints.md."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.operator.schema import CRD, SPEC
from tests.operator.test_desired import SPECS, objects
from tests.operator.world import SETTINGS, Obj, World, parent
from tests.operator.wrong import manifest
from v4_operator.desired import desired_state
from v4_operator.observed.live import Observed
from v4_operator.spec.parse import parse

_LONGEST_NAME = 40
_TWO_OF_EACH: Obj = {"prefill": {"replicas": 2}, "decode": {"replicas": 2}}


def followed(world: World) -> World:
    """Reconciles until the desired state is reached and all draining pods have ended."""
    world.reconcile()
    if world.of("Job"):
        world.finish_job()
    world.settle()
    world.tick(world.drain_seconds + 1)
    world.settle()
    return world


def names(world: World) -> set[tuple[str, str]]:
    """All objects except pods, and except claims, which are never deleted."""
    return {key for key in world.objects if key[0] not in ("Pod", "PersistentVolumeClaim")}


def made(one: Obj) -> tuple[Obj, ...]:
    """The objects of a new V4Deployment."""
    return desired_state(one, Observed(World().now), SETTINGS).objects


def containers(case: str) -> Iterator[Obj]:
    """Every container in the desired state of a case."""
    for obj in objects(SPECS[case]):
        yield from obj.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())


@pytest.mark.parametrize("before", SPECS)
def test_no_object_of_a_former_spec_stays(before: str) -> None:
    for after, spec in SPECS.items():
        world = followed(World(SPECS[before]))
        world.spec = {"model": {"demo": {}}, **spec}
        world.generation += 1
        assert names(followed(world)) == names(followed(World(spec))), f"{before} -> {after}"


def test_decisions_do_not_depend_on_what_was_written_to_the_v4deployment() -> None:
    """A replace drops annotations, a restored backup the status; in the middle of a rollout neither restarts a pod."""
    annotated = {"annotations": {"v4serve.dev/anything": "1"}}
    assert parse(manifest({}, uid="u", generation=1, **annotated)) == parse(manifest({}, uid="u", generation=1))
    world = followed(World(_TWO_OF_EACH))
    first, serving = world.status["revision"], set(_pods(world))
    world.room = 5  # the fourth new worker finds no node
    world.change({"model": {"revision": "b"}})
    _run(world, 20)
    rolling, sizes = set(_pods(world)), world.sizes()
    assert len(sizes) == 4
    world.status = {}
    for obj in world.objects.values():
        obj["metadata"].pop("annotations", None)
    _run(world, 5)
    assert (world.sizes(), set(_pods(world))) == (sizes, rolling)
    assert f"revision {first} serves meanwhile" in world.condition("Ready")["message"]
    world.change({"model": {"revision": ""}})
    assert set(_pods(followed(world))) == serving, "taken back, the first pods serve on"


@pytest.mark.parametrize("strategy", ["Surge", "Replace"])
def test_a_pod_that_finds_no_node_does_not_hold_up_a_scale_down(strategy: str) -> None:
    world = followed(World({"rollout": {"strategy": strategy}}))
    before = set(_pods(world))
    world.room = len(before)
    world.change({"decode": {"replicas": 3}})
    _run(world, 20)
    assert len(_pods(world)) == len(before) + 2
    world.change({"decode": {"replicas": 1}})
    assert set(_pods(followed(world))) == before
    assert world.condition("Ready")["status"] == "True"


@pytest.mark.parametrize("empty", ["prefill", "decode", "router"])
def test_a_pool_grows_again_after_zero_replicas(empty: str) -> None:
    world = followed(World({empty: {"replicas": 0}}))
    assert world.condition("Ready")["reason"] == "ScaledToZero"
    world.change({empty: {"replicas": 2}})
    followed(world)
    assert (world.condition("Ready")["status"], world.condition("Progressing")["reason"]) == ("True", "Complete")


def test_two_v4deployments_of_one_namespace_share_no_name_and_no_pod() -> None:
    """Also if the name of one is the name of a child of the other."""
    first = made(parent())
    neighbours = {obj["metadata"]["name"] for obj in first} | {"demo-api", "demo-fetch"}
    for name in sorted(neighbours - {"demo"}):
        if len(name) > _LONGEST_NAME:
            continue
        second = made(parent(name=name))
        shared = {_key(obj) for obj in first} & {_key(obj) for obj in second}
        assert not shared, f"{name}: {shared}"
        for one, other in ((first, second), (second, first)):
            pods = [labels for obj in one if (labels := _pod_labels(obj))]
            assert not [s for obj in other for s in _selectors(obj) for labels in pods if s.items() <= labels.items()]


@pytest.mark.parametrize("case", SPECS)
def test_images_are_those_of_the_settings_and_the_spec(case: str) -> None:
    assert {container["image"] for container in containers(case)} <= {SETTINGS.worker_image, SETTINGS.router_image}


@pytest.mark.parametrize("case", SPECS)
def test_all_objects_and_references_stay_in_the_namespace_of_the_v4deployment(case: str) -> None:
    for container in containers(case):
        args = container["args"]
        if "--namespace" in args:
            assert args[args.index("--namespace") + 1] == "models"
    for obj in objects(SPECS[case]):
        assert obj["metadata"]["namespace"] == "models"
        assert all(subject["namespace"] == "models" for subject in obj.get("subjects", ()))


@pytest.mark.parametrize("case", SPECS)
def test_every_pod_reads_the_same_model_and_only_the_job_writes_it(case: str) -> None:
    volumes = []
    for obj in objects(SPECS[case]):
        pod = obj.get("spec", {}).get("template", {}).get("spec", {})
        if not pod or obj["kind"] == "Job":
            continue
        volumes.append([volume for volume in pod["volumes"] if volume["name"] == "model"])
        mounts = [mount for c in pod["containers"] for mount in c["volumeMounts"] if mount["name"] == "model"]
        assert all(mount["readOnly"] for mount in mounts)
        assert len(mounts) == (len(pod["containers"]) if volumes[-1] else 0)
    assert volumes.count(volumes[0]) == len(volumes)


def test_no_field_sets_the_command_line_of_a_pod() -> None:
    """So that no setting can contradict the role of a worker."""
    for part in ("prefill", "decode", "router"):
        additions = SPEC["properties"][part]["properties"]["pod"]["properties"]
        assert not {"args", "command", "containers"} & additions.keys()


def test_there_is_one_version_and_no_webhook_that_could_be_down() -> None:
    (version,) = CRD["spec"]["versions"]
    assert version["served"] is version["storage"] is True
    assert CRD["spec"].get("conversion", {"strategy": "None"}) == {"strategy": "None"}


def _run(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.reconcile()
        world.tick()


def _pods(world: World) -> list[str]:
    return [pod["metadata"]["name"] for pod in world.pods()]


def _key(obj: Mapping[str, Any]) -> tuple[str, str]:
    return obj["kind"], obj["metadata"]["name"]


def _pod_labels(obj: Obj) -> dict[str, str]:
    found: dict[str, str] = obj.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})
    return found


def _selectors(obj: Obj) -> list[dict[str, str]]:
    """The pod selectors of a Service, Deployment, disruption budget or network policy."""
    spec = obj.get("spec", {})
    found = [spec.get("selector"), spec.get("podSelector")]
    return [selector.get("matchLabels", selector) for selector in found if selector]
