"""The whole desired state: objects are valid and unique, none is left over, and an idle operator writes nothing."""

import base64
import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.operator.world import SETTINGS, Obj, World, parent
from v4_operator.desired import desired_state
from v4_operator.manifests.settings import Settings
from v4_operator.observed.live import Observed

SPECS: dict[str, Obj] = {
    "demo": {},
    "pvc": {"model": {"pvc": {"claimName": "weights", "path": "flash"}}},
    "hostPath": {"model": {"hostPath": {"path": "/srv/model"}}},
    "image": {"model": {"image": {"reference": "models/demo:1", "path": "demo"}}},
    "huggingFace": {"model": {"huggingFace": {"repository": "a/b", "tokenSecret": "hub", "storageClass": "shared"}}},
    "shared": {"placement": "shared", "prefill": {"replicas": 2}, "decode": {"replicas": 2}},
    "replace": {"rollout": {"strategy": "Replace"}, "cache": {"slots": 100}, "router": {"auth": "none"}},
    "own keys": {"router": {"apiKeysSecret": "mine", "service": {"type": "LoadBalancer", "annotations": {"a": "b"}}}},
    "nothing": {"prefill": {"replicas": 0}, "decode": {"replicas": 0}, "router": {"replicas": 0}},
    "everything of a pod": {
        "decode": {
            "resources": {"requests": {"cpu": "1500m"}, "limits": {"memory": "4Gi"}},
            "pod": {
                "labels": {"team": "a"},
                "annotations": {"note": "b"},
                "nodeSelector": {"disk": "fast"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "affinity": {"podAntiAffinity": {}},
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
                ],
                "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
                "volumes": [{"name": "extra", "emptyDir": {}}],
                "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
                "priorityClassName": "high",
                "runtimeClassName": "kata",
                "serviceAccountName": "mine",
                "imagePullSecrets": [{"name": "hub"}],
            },
        }
    },
    "scraped": {"networkPolicy": {"scrapeFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}},
}


def objects(spec: Obj, settings: Settings = SETTINGS) -> tuple[Obj, ...]:
    """All objects of a desired state, including the workers and the router of a downloaded model."""
    world = World(spec, settings)
    first = world.reconcile()
    if world.of("Job"):
        world.finish_job()
    every = (*first.objects, *world.desired_state().objects)
    return tuple({(o["kind"], o["metadata"]["name"]): o for o in every}.values())


@pytest.mark.parametrize(
    ("case", "version"), [(case, "1.36") for case in SPECS] + [(case, "1.25") for case in SPECS if case != "image"]
)
def test_objects_are_valid(case: str, version: str) -> None:
    settings = replace(SETTINGS, server_version=(1, int(version.partition(".")[2])))
    for obj in objects(SPECS[case], settings):
        plain = yaml.safe_load(yaml.safe_dump(obj, default_flow_style=False))
        kubernetes_validate.validate(plain, version, strict=True)


@pytest.mark.parametrize("case", SPECS)
def test_objects_are_written_in_the_form_that_the_server_stores(case: str) -> None:
    """The operator would write an object again and again if the server dropped or added a field."""
    for obj in objects(SPECS[case]):
        assert not [path for path, value in _leaves(obj) if value in ({}, [], None, "") and not _meant(path)]
        for path, value in _leaves(obj):
            if path[-1] in ("containerPort", "port") and "ports" in path:
                assert "protocol" in _at(obj, path[:-1])
            if "requests" in path or "limits" in path:
                assert isinstance(value, str)


@pytest.mark.parametrize("case", SPECS)
def test_names_are_unique_and_children_have_owner_and_labels(case: str) -> None:
    made = objects(SPECS[case])
    assert len({(obj["kind"], obj["metadata"]["name"]) for obj in made}) == len(made)
    for obj in made:
        metadata = obj["metadata"]
        assert metadata["namespace"] == "models"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "v4serve-operator"
        if obj["kind"] == "PersistentVolumeClaim":
            assert "ownerReferences" not in metadata, "it survives its V4Deployment"
            continue
        assert metadata["labels"]["v4serve.dev/deployment"] == "demo"
        assert metadata["ownerReferences"] == [
            {
                "apiVersion": "v4serve.dev/v1alpha1",
                "kind": "V4Deployment",
                "name": "demo",
                "uid": "uid-demo",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]


def test_the_longest_name_fits_into_labels() -> None:
    made = desired_state(parent(SPECS["huggingFace"], name="a" * 40), Observed(World().now), SETTINGS)
    assert all(len(obj["metadata"]["name"]) <= 63 for obj in made.objects)
    made = desired_state(parent(name="a" * 40), Observed(World().now), SETTINGS)
    assert max(len(obj["metadata"]["name"]) for obj in made.objects) == 59


@pytest.mark.parametrize("case", SPECS)
def test_nothing_is_written_in_the_desired_state(case: str) -> None:
    world = World(SPECS[case])
    world.reconcile()
    if world.of("Job"):
        world.finish_job()
    made = world.settle()
    writes, before = world.writes, world.desired_state()
    world.tick(600)
    assert world.reconcile() == replace(before, status=world.status)
    assert world.writes == writes
    assert made.requeue_seconds == (15 if case == "nothing" else 60)
    assert made.prune == ()


def test_secrets_are_created_once() -> None:
    world = World()
    first = world.reconcile()
    secrets = [obj for obj in first.objects if obj["kind"] == "Secret"]
    assert [s["metadata"]["name"] for s in secrets] == ["demo-token", "demo-api-key"]
    assert all(s["metadata"]["annotations"]["v4serve.dev/create-only"] == "true" for s in secrets)
    key = base64.b64decode(secrets[1]["data"]["key"]).decode()
    assert yaml.safe_load(base64.b64decode(secrets[1]["data"]["keys.yaml"])) == {key: "default"}
    assert len(base64.b64decode(secrets[0]["data"]["token"])) >= 32
    assert World().reconcile().objects[0] != secrets[0], "another one has another token"
    second = world.reconcile()
    assert not [obj for obj in second.objects if obj["kind"] == "Secret"]
    assert second.prune == ()
    del world.objects["Secret", "demo-token"]
    assert [obj["metadata"]["name"] for obj in world.reconcile().objects if obj["kind"] == "Secret"] == ["demo-token"]


def test_objects_that_are_no_longer_desired_are_deleted() -> None:
    world = World()
    world.settle()
    world.change({"model": {"revision": "b"}})
    old = [d["metadata"]["name"] for d in world.of("Deployment") if "router" not in d["metadata"]["name"]]
    world.settle()
    assert not {d["metadata"]["name"] for d in world.of("Deployment")} & set(old)


def test_a_key_stays_until_no_router_needs_it_to_start() -> None:
    world = World()
    world.settle()
    world.change({"router": {"auth": "none"}})
    seen = []
    for _ in range(60):
        world.reconcile()
        mounted = [p for p in world.pods(role="router") if any(v["name"] == "api-keys" for v in p["spec"]["volumes"])]
        seen.append((bool(mounted), ("Secret", "demo-api-key") in world.objects))
        world.tick()
    assert (True, False) not in seen
    assert seen[-1] == (False, False)
    assert ("Secret", "demo-token") in world.objects


def test_objects_of_other_owners_stay() -> None:
    world = World()
    world.settle()
    labels = {"v4serve.dev/deployment": "demo"}
    world.objects["ConfigMap", "mine"] = {"kind": "ConfigMap", "metadata": {"name": "mine", "labels": labels}}
    copied = {**labels, "app.kubernetes.io/managed-by": "v4serve-operator"}
    world.objects["ConfigMap", "copied"] = {"kind": "ConfigMap", "metadata": {"name": "copied", "labels": copied}}
    other = [{"kind": "ReplicaSet", "name": "x", "uid": "x", "controller": True}]
    world.objects["ConfigMap", "theirs"] = {
        "kind": "ConfigMap",
        "metadata": {"name": "theirs", "labels": labels, "ownerReferences": other},
    }
    key = copy.deepcopy(world.objects["Secret", "demo-api-key"])  # as `kubectl get --output=yaml` shows it
    key["metadata"] |= {"name": "backup", "ownerReferences": []}
    world.objects["Secret", "backup"] = key
    assert world.desired_state().prune == ()


def test_the_stored_spec_is_deleted_after_the_new_one_is_stored() -> None:
    """If the new one cannot be written, a later refused spec still has a valid one to fall back to."""
    world = World()
    world.settle()
    (before,) = [obj["metadata"]["name"] for obj in world.of("ConfigMap") if obj.get("immutable")]
    world.change({"decode": {"replicas": 2}})
    assert before not in [obj["metadata"]["name"] for obj in world.desired_state().prune]
    world.settle()
    (after,) = [obj["metadata"]["name"] for obj in world.of("ConfigMap") if obj.get("immutable")]
    assert after != before


def test_nothing_is_created_while_the_v4deployment_is_being_deleted() -> None:
    made = desired_state(parent(deletionTimestamp="2026-01-01T00:00:00Z"), Observed(World().now), SETTINGS)
    assert (made.objects, made.prune, made.requeue_seconds) == ((), (), None)


def test_an_invalid_spec_changes_nothing() -> None:
    world = World()
    first = world.settle().status["revision"]
    world.change({"transfer": {"transport": "nixl"}, "decode": {"replicas": 7}})
    before = {key: obj for key, obj in world.objects.items() if obj["kind"] != "Pod"}
    before = copy.deepcopy(before)
    made = world.reconcile()
    assert made.prune == ()
    assert {key: obj for key, obj in world.objects.items() if obj["kind"] != "Pod"} == before
    assert (made.status["decode"]["desired"], made.status["decode"]["ready"]) == (1, 1)
    assert made.status["revision"] == first
    ready, progressing, degraded = (world.condition(kind) for kind in ("Ready", "Progressing", "Degraded"))
    assert (ready["status"], ready["reason"]) == ("False", "EngineLacks")  # `kubectl wait` must not succeed
    assert ready["message"].endswith(f"revision {first} of a former spec still serves")
    assert (progressing["status"], progressing["reason"]) == ("False", "EngineLacks")
    assert "the last valid one, of generation 1, is followed" in progressing["message"]
    assert (degraded["status"], degraded["reason"]) == ("True", "EngineLacks")
    assert "nixl" in degraded["message"]
    assert made.status["observedGeneration"] == degraded["observedGeneration"] == 2


@pytest.mark.parametrize("case", [case for case in SPECS if case != "nothing"])
def test_drift_is_repaired_while_a_spec_is_refused(case: str) -> None:
    world = World(SPECS[case])
    world.reconcile()
    if world.of("Job"):
        world.finish_job()
    world.settle()
    kept = {"PersistentVolumeClaim", "Pod", "Job"}
    before = copy.deepcopy({key: obj for key, obj in world.objects.items() if obj["kind"] not in kept})
    memory = [key for key, obj in before.items() if obj.get("immutable")]
    assert len(memory) == 1
    world.change({"transfer": {"transport": "nixl"}, "prefill": {"replicas": 5}, "decode": {"replicas": 5}})
    world.reconcile()
    for key in before.keys() - set(memory):
        obj = world.objects[key]
        if obj["kind"] == "Deployment":
            obj["spec"]["template"]["spec"]["containers"][0]["image"] = "foreign:1"
        elif key != (
            "ServiceAccount",
            "demo-router",
        ):  # the router's pods depend on its uid, so that deleting it is not drift
            del world.objects[key]
    for _ in range(30):
        world.reconcile()
        world.tick()
    after = {key: obj for key, obj in world.objects.items() if obj["kind"] not in kept}
    assert after.keys() == before.keys()
    for key, obj in before.items():
        if obj["kind"] != "Secret":
            assert after[key].get("spec", after[key].get("data")) == obj.get("spec", obj.get("data"))
    assert world.condition("Degraded")["reason"] == "EngineLacks"
    world.change({"transfer": {"transport": "auto"}, "prefill": {"replicas": 2}, "decode": {"replicas": 2}})
    world.settle()
    assert world.condition("Ready")["status"] == "True"
    assert len([obj for obj in world.of("ConfigMap") if obj.get("immutable")]) == 1


def test_a_rollout_of_the_last_valid_spec_continues_while_a_newer_spec_is_refused() -> None:
    world = World()
    first = world.settle().status["revision"]
    world.change({"model": {"revision": "b"}})
    second = world.reconcile().status["revision"]
    world.change({"transfer": {"transport": "nixl"}})
    for _ in range(60):
        world.reconcile()
        world.tick()
    assert world.revisions() == [second] != [first]
    assert "generation 2" in world.condition("Progressing")["message"]


def test_a_spec_that_cannot_be_parsed_is_replaced_by_the_last_valid_one() -> None:
    world = World()
    world.settle()
    del world.objects["Service", "demo"]
    world.change({"decode": {"replicas": "many"}})
    made = world.desired_state()
    assert "Service" in {obj["kind"] for obj in made.objects}
    _, progressing, degraded = made.status["conditions"]
    assert (progressing["reason"], degraded["reason"]) == ("InvalidSpec", "InvalidSpec")
    assert "generation 1" in progressing["message"]
    assert "decode.replicas must be a whole number, not 'many'" in degraded["message"]
    assert made.status["observedGeneration"] == 2


def test_a_spec_that_cannot_be_parsed_and_has_no_predecessor_is_refused() -> None:
    world = World({"decode": {"replicas": "many"}})
    world.status = {"endpoint": "as it was"}
    made = world.desired_state()
    assert (made.objects, made.prune, made.requeue_seconds) == ((), (), None)
    assert made.status["endpoint"] == "as it was"
    conditions = {c["type"]: (c["status"], c["reason"]) for c in made.status["conditions"]}
    reason = "InvalidSpec"
    assert conditions == {"Ready": ("False", reason), "Progressing": ("False", reason), "Degraded": ("True", reason)}


def test_a_refused_spec_without_a_stored_one_changes_nothing() -> None:
    world = World()
    world.settle()
    (memory,) = [obj for obj in world.of("ConfigMap") if obj.get("immutable")]
    world.change({"transfer": {"transport": "nixl"}})
    for tampered in (
        {"data": {**memory["data"], "workerImage": "foreign:1"}},
        {"metadata": {**memory["metadata"], "ownerReferences": []}},
    ):
        world.objects["ConfigMap", memory["metadata"]["name"]] = memory | tampered
        assert (world.desired_state().objects, world.desired_state().prune) == ((), ())
    del world.objects["ConfigMap", memory["metadata"]["name"]]
    made = world.reconcile()
    assert (made.objects, made.prune) == ((), ())
    assert "nothing is created or changed" in world.condition("Progressing")["message"]
    assert world.status["revision"] == world.revisions()[0]


@pytest.mark.parametrize("case", SPECS)
@pytest.mark.parametrize("after", ["demo", "shared", "huggingFace"])
def test_orphaned_objects_are_adopted_or_deleted(case: str, after: str) -> None:
    world = World(SPECS[case])
    world.reconcile()
    if world.of("Job"):
        world.finish_job()
    world.settle()
    secrets = {obj["metadata"]["name"]: obj["data"] for obj in world.of("Secret")}
    for obj in world.objects.values():
        if obj["kind"] != "Pod":
            obj["metadata"].pop("ownerReferences", None)
    world.uid, world.generation, world.status = "uid-again", 1, {}
    world.spec = {"model": {"demo": {}}, **SPECS[after]}
    world.reconcile()
    for job in world.of("Job"):
        job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    world.settle()
    for kind, name in world.objects:
        if kind not in ("Pod", "PersistentVolumeClaim"):
            owners = world.objects[kind, name]["metadata"].get("ownerReferences", [])
            assert [owner["uid"] for owner in owners] == ["uid-again"], (kind, name)
    for obj in world.of("Secret"):
        assert obj["data"] == secrets.get(obj["metadata"]["name"], obj["data"]), "clients go on with their key"


def test_a_first_spec_that_is_invalid_creates_nothing() -> None:
    world = World({"transfer": {"transport": "nixl"}})
    assert world.reconcile().objects == ()
    assert (world.condition("Ready")["status"], world.condition("Ready")["reason"]) == ("False", "EngineLacks")
    assert world.status["prefill"]["summary"] == "0/1"


def test_old_workers_shrink_before_new_ones_grow() -> None:
    world = World({"prefill": {"replicas": 2}, "decode": {"replicas": 2}, "rollout": {"strategy": "Replace"}})
    first = world.settle().status["revision"]
    world.change({"model": {"revision": "b"}})
    names = [obj["metadata"]["name"] for obj in world.desired_state().objects if obj["kind"] == "Deployment"]
    assert [first in name for name in names] == [True, True, False, False, False]


def test_a_deployment_that_was_changed_by_hand_is_repaired() -> None:
    world = World()
    world.settle()
    name = next(iter(world.sizes()))
    world.get("Deployment", name)["spec"]["replicas"] = 5
    world.reconcile()
    assert world.sizes()[name] == 1


def _meant(path: tuple[Any, ...]) -> bool:
    """Whether a value may be empty, such as an empty selector or the name of the core group."""
    return path[-1] in ("emptyDir", "podAntiAffinity", "podSelector") or path[-2] == "apiGroups"


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(item, dict | list) and item:
            yield from _leaves(item, (*path, key))
        else:
            yield (*path, key), item


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value
