"""The operator against a real API server and its controllers: what it makes, repairs, leaves alone and lets go.

Pods need not run for this: their images do not exist.
"""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.machine.cluster import Cluster
from tests.cluster.machine.errors import CommandFailed
from tests.cluster.operator_process import OperatorProcess
from v4_core.kubernetes import API_VERSION, DEPLOYMENT_LABEL, KIND, MANAGED_BY_LABEL, MANAGER

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
CHART = str(ROOT / "charts" / "v4serve")
CRD = "v4deployments.v4serve.dev"
KINDS = "deployment,service,configmap,secret,serviceaccount,role,rolebinding,networkpolicy,poddisruptionbudget"
OURS = f"{MANAGED_BY_LABEL}={MANAGER}"
SECONDS = 120.0  # a kubelet of 1.20 takes up to 67 s to let go of a pod that has ended; all else is there in a few


class Space:
    """A namespace with operators, and what is in it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.name = cluster, f"op-{uuid.uuid4().hex[:8]}"
        self._folder, self._operators = folder, list[OperatorProcess]()

    def start(self, environment: dict[str, str] | None = None) -> OperatorProcess:
        self._operators.append(OperatorProcess(self.cluster, self.name, self._folder, environment))
        return self._operators[-1]

    def kubectl(self, *args: str, text: str | None = None, check: bool = True) -> str:
        return self.cluster.kubectl(*args, "--namespace", self.name, input=text, check=check)

    def apply(self, **spec: Any) -> None:
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": "d"},
            # A namespace that goes is looked at again after half of its pods' grace, which drains make long.
            "spec": {"model": {"demo": {}}, "rollout": {"drainSeconds": 1}, **spec},
        }
        self.kubectl("apply", "--filename=-", text=json.dumps(body))

    def parent(self) -> dict[str, Any]:
        return self.cluster.get("v4d", "d", "--namespace", self.name)

    def condition(self, kind: str) -> dict[str, Any]:
        found = (c for c in self.parent().get("status", {}).get("conditions", ()) if c["type"] == kind)
        return next(found, {})

    def children(self) -> list[dict[str, Any]]:
        answer = self.cluster.get(KINDS, "--namespace", self.name, "--selector", OURS, "--show-managed-fields")
        return list(answer["items"])

    def names(self) -> set[str]:
        return {f"{child['kind']}/{child['metadata']['name']}" for child in self.children()}

    def images(self, deployment: str) -> list[str]:
        path = "--output=jsonpath={.spec.template.spec.containers[*].image}"
        return self.kubectl("get", deployment, path).split()

    def complete(self) -> bool:
        """Whether the three Deployments are there, which are written last, and the status after them."""
        return sum(name.startswith("Deployment/") for name in self.names()) == 3 and bool(self.parent().get("status"))

    def settled(self, operator: OperatorProcess) -> float:
        """Wait until looking again and again writes nothing; the number of writes so far."""
        quiet = 0
        for _ in range(20):
            writes, looks = operator.writes, operator.looks
            self.kubectl("annotate", "v4d", "d", f"look={uuid.uuid4().hex}", "--overwrite")
            self.wait(lambda looks=looks: operator.looks > looks, "a changed annotation is looked at")
            quiet = quiet + 1 if operator.writes == writes else 0
            if quiet == 3:
                return writes
        raise AssertionError(f"it writes on and on: {operator.writes} writes")

    def wait(self, condition: Any, what: str) -> None:
        self.cluster.wait(condition, SECONDS, what)

    def close(self) -> None:
        for operator in self._operators:
            operator.stop()
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="module")
def definition(control_plane: Cluster) -> Iterator[None]:
    """The custom resource definition; one that was made here is deleted again."""
    # Servers before 1.25 drop its rules, which kubectl would refuse.
    said = control_plane.kubectl("apply", "--validate=false", "--filename", f"{CHART}/files/crd.yaml")
    control_plane.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=300s")
    yield
    if said.strip().endswith("created"):
        control_plane.kubectl("delete", "crd", CRD)


@pytest.fixture
def space(control_plane: Cluster, definition: None, tmp_path: Path) -> Iterator[Space]:
    made = Space(control_plane, tmp_path)
    control_plane.kubectl("create", "namespace", made.name)
    yield made
    made.close()


def test_a_v4deployment_gets_its_children_and_then_nothing_is_written(space: Space) -> None:
    operator = space.start().serving()
    began = time.monotonic()
    space.apply()
    space.wait(space.complete, "all children are there")
    assert time.monotonic() - began < 20, "usually less than 2 s, kubectl included"
    space.settled(operator)
    versions = {child["metadata"]["uid"]: child["metadata"]["resourceVersion"] for child in static(space)}
    space.settled(operator)
    assert {child["metadata"]["uid"]: child["metadata"]["resourceVersion"] for child in static(space)} == versions
    for child in space.children():
        owner = child["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["controller"], owner["blockOwnerDeletion"]) == (KIND, True, True)
        assert child["metadata"]["labels"][DEPLOYMENT_LABEL] == "d"


def static(space: Space) -> list[dict[str, Any]]:
    """Children that no controller writes to."""
    moving = ("Deployment", "PodDisruptionBudget", "ServiceAccount")
    return [child for child in space.children() if child["kind"] not in moving]


def test_kopf_leaves_no_trace(space: Space) -> None:
    operator = space.start().serving()
    space.apply()
    space.wait(space.complete, "all children are there")
    space.settled(operator)
    parent = space.cluster.get("v4d", "d", "--namespace", space.name, "--show-managed-fields")["metadata"]
    assert "finalizers" not in parent
    assert set(parent["annotations"]) == {"kubectl.kubernetes.io/last-applied-configuration", "look"}
    managers = {entry["manager"] for entry in parent["managedFields"]}
    assert {manager for manager in managers if not manager.startswith("kubectl")} == {MANAGER}
    events = space.cluster.get("events", "--namespace", space.name, "--field-selector", f"involvedObject.kind={KIND}")
    assert {event["source"]["component"] for event in events["items"]} == {MANAGER}
    assert len({(event["reason"], event["message"]) for event in events["items"]}) == len(events["items"])


def test_drift_is_repaired_and_the_work_of_others_is_not_fought(space: Space) -> None:
    operator = space.start().serving()
    space.apply()
    space.wait(space.complete, "all children are there")
    before = space.names()
    space.settled(operator)
    space.kubectl("delete", "configmap", "d-router", "--wait=true")
    space.kubectl("patch", "service", "d", "--patch", '{"spec": {"selector": {"v4serve.dev/role": "decode"}}}')
    space.kubectl("patch", "role", "d-router", "--type=json", "--patch", '[{"op": "remove", "path": "/rules/0"}]')
    space.kubectl("scale", "deployment/d-router", "--replicas=5")
    space.kubectl("label", "serviceaccount", "d-worker", f"{MANAGED_BY_LABEL}-")  # by which it is watched

    def repaired() -> bool:
        service = space.cluster.get("service", "d", "--namespace", space.name)
        router = space.cluster.get("deployment", "d-router", "--namespace", space.name)
        role = space.cluster.get("role", "d-router", "--namespace", space.name)
        return (service["spec"]["selector"]["v4serve.dev/role"], router["spec"]["replicas"], bool(role["rules"])) == (
            "router",
            1,
            True,
        ) and space.names() == before

    space.wait(repaired, "everything is as it was")
    space.kubectl("set", "env", "deployment/d-router", "OTHERS=1")
    space.kubectl("label", "service", "d", "others=1")
    writes = space.settled(operator)
    assert space.settled(operator) == writes
    assert "OTHERS" in space.kubectl("get", "deployment", "d-router", "--output=yaml")


def test_what_people_do_by_hand_is_neither_followed_nor_in_the_way(space: Space) -> None:
    """An image that was set, a sidecar that was put first, what is deleted while a newer spec is refused."""
    operator = space.start().serving()
    space.apply()
    space.wait(space.complete, "all children are there")
    space.settled(operator)
    before = space.names()
    (decode,) = (name for name in before if name.startswith("Deployment/d-decode"))
    (prefill,) = (name for name in before if name.startswith("Deployment/d-prefill"))
    mesh = {"op": "add", "path": "/spec/template/spec/containers/0", "value": {"name": "mesh", "image": "mesh:1"}}
    budget = '{"spec": {"maxUnavailable": null, "minAvailable": 1}}'
    space.kubectl("set", "image", decode, "decode=foreign:1")
    space.kubectl("set", "image", "Deployment/d-router", "router=foreign:1")
    space.kubectl("patch", prefill, "--type=json", "--patch", json.dumps([mesh]))
    space.kubectl("patch", "PodDisruptionBudget/d-router", "--patch", budget)
    space.kubectl("patch", "Service/d", "--patch", '{"spec": {"selector": {"more": "1"}}}')
    space.wait(lambda: "foreign" not in space.kubectl("get", "deployment", "--output=yaml"), "images are taken back")
    space.wait(lambda: '"more"' not in space.kubectl("get", "service", "--output=json"), "so is the selector")
    space.wait(lambda: "minAvailable" not in space.kubectl("get", "pdb", "--output=json"), "so is the budget")
    assert space.images(prefill) == ["mesh:1", "none.invalid/worker:1"]
    writes = space.settled(operator)
    assert space.settled(operator) == writes
    assert space.names() == before, "no revision was made of what people did"

    space.apply(transfer={"transport": "nixl"}, decode={"replicas": 7})
    space.wait(lambda: space.condition("Degraded").get("reason") == "EngineLacks", "the spec is refused")
    assert "the last valid one, of generation 1, is followed" in space.condition("Progressing")["message"]
    space.kubectl("delete", "Service/d", "Secret/d-token", "Deployment/d-router", decode)
    space.wait(lambda: space.names() == before, "what was deleted is there again")
    assert space.images(decode) == ["none.invalid/worker:1"]
    assert space.kubectl("get", decode, "--output=jsonpath={.spec.replicas}") == "1"
    (memory,) = (name for name in before if name.startswith("ConfigMap/d-spec-"))
    with pytest.raises(CommandFailed, match="immutable"):
        space.kubectl("patch", memory, "--patch", '{"data": {"spec": "{}"}}')


def test_what_had_to_be_taken_back_by_force_can_still_be_taken_out(space: Space) -> None:
    """A variable of another source makes an apply invalid; what replaces it must not stay when the spec lets it go."""
    operator = space.start().serving()
    space.apply(decode={"pod": {"env": [{"name": "FOO", "value": "1"}]}})
    space.wait(space.complete, "all children are there")
    space.settled(operator)
    (decode,) = (name for name in space.names() if name.startswith("Deployment/d-decode"))
    source = {"name": "FOO", "value": None, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container = {"name": "decode", "env": [source]}
    space.kubectl("patch", decode, "--patch", json.dumps({"spec": {"template": {"spec": {"containers": [container]}}}}))
    variables = "--output=jsonpath={.spec.template.spec.containers[?(@.name=='decode')].env}"

    def foo() -> list[dict[str, Any]]:
        return [one for one in json.loads(space.kubectl("get", decode, variables)) if one["name"] == "FOO"]

    space.wait(lambda: foo() == [{"name": "FOO", "value": "1"}], "the variable is as it was")
    space.apply(decode={})
    space.wait(lambda: foo() == [], "it is gone")
    space.settled(operator)


def test_what_was_orphaned_belongs_to_the_next_one(space: Space) -> None:
    operator = space.start().serving()
    space.apply()
    space.wait(space.complete, "all children are there")
    space.settled(operator)
    key = space.kubectl("get", "secret", "d-api-key", "--output=jsonpath={.data.key}")
    space.kubectl("delete", "v4d", "d", "--cascade=orphan", "--timeout=300s")
    assert all("ownerReferences" not in child["metadata"] for child in space.children())
    space.apply(model={"demo": {}, "revision": "b"})
    uid = space.parent()["metadata"]["uid"]

    def adopted() -> bool:
        return all(c["metadata"].get("ownerReferences", [{}])[0].get("uid") == uid for c in space.children())

    space.wait(adopted, "all children are of the new one")
    assert space.kubectl("get", "secret", "d-api-key", "--output=jsonpath={.data.key}") == key
    space.kubectl("delete", "v4d", "d", "--timeout=300s")
    space.wait(lambda: space.names() == set(), "all children are gone")


def test_a_changed_spec_is_followed_and_what_it_no_longer_wants_goes(space: Space) -> None:
    operator = space.start().serving()
    space.apply()
    space.wait(space.complete, "all children are there")
    space.apply(model={"huggingFace": {"repository": "a/b"}})
    space.wait(lambda: "NetworkPolicy/d-download" in space.names(), "a model would be fetched")
    space.apply(router={"auth": "none"}, decode={"replicas": 3})
    space.wait(lambda: "NetworkPolicy/d-download" not in space.names(), "what only that needed is gone")
    assert "Secret/d-api-key" in space.names(), "the router that runs, until another is ready, needs it to start"
    space.wait(lambda: '"replicas": 3' in space.kubectl("get", "deploy", "--output=json"), "decode has 3 replicas")
    space.kubectl("scale", "v4d/d", "--replicas=2")
    space.wait(lambda: '"replicas": 2' in space.kubectl("get", "deploy", "--output=json"), "decode has 2 replicas")
    space.settled(operator)


def test_the_names_of_others_are_not_taken(space: Space) -> None:
    space.kubectl("create", "configmap", "d-router", "--from-literal=mine=1")
    space.start().serving()
    space.apply()
    space.wait(lambda: space.condition("Degraded").get("reason") == "NameTaken", "the condition says so")
    assert "ConfigMap d-router exists" in space.condition("Degraded")["message"]
    assert space.cluster.get("configmap", "d-router", "--namespace", space.name)["data"] == {"mine": "1"}
    assert "Service/d" in space.names(), "the others were made"
    space.kubectl("delete", "configmap", "d-router")
    space.wait(lambda: "ConfigMap/d-router" in space.names(), "it was made once the name was free")
    space.wait(lambda: space.condition("Degraded").get("reason") != "NameTaken", "the condition is over")


def test_what_the_server_refuses_for_good_stands_in_status(space: Space) -> None:
    """What the schema knows is refused at once, and of what only the server knows its words stand in status."""
    same: list[dict[str, Any]] = [
        {"env": [{"name": "X", "value": True}]},
        {"env": [{"name": "X"}, {"name": "X"}]},
        {"volumes": [{"name": "v"}, {"name": "v"}]},
    ]
    for pod in same:
        with pytest.raises(CommandFailed, match=r"spec\.decode\.pod\.(env|volumes)"):
            space.apply(decode={"pod": pod})
    space.start().serving()
    unknown = [{"name": "X", "nonsense": 1}]  # a server answers 500
    both = [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]  # and 422
    space.apply(decode={"pod": {"env": unknown}}, prefill={"pod": {"volumes": both}})

    def told() -> bool:
        message = space.condition("Degraded").get("message", "")
        return "apply Deployment d-decode-" in message and "apply Deployment d-prefill-" in message

    space.wait(told, "both refusals are told")
    degraded = space.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ApplyFailed")
    assert "nonsense" in degraded["message"]
    assert "may not specify more than 1 volume type" in degraded["message"]
    space.apply()
    space.wait(lambda: space.condition("Degraded").get("reason") != "ApplyFailed", "the condition is over")
    space.wait(space.complete, "all children are there")


@pytest.mark.parametrize("cascade", ["foreground", "background"])
def test_a_deletion_is_not_fought(space: Space, cascade: str) -> None:
    operator = space.start().serving()
    space.apply()
    space.wait(space.complete, "all children are there")
    space.settled(operator)
    writes = operator.writes
    space.kubectl("delete", "v4d", "d", f"--cascade={cascade}", "--timeout=300s")
    space.wait(lambda: space.names() == set(), "all children are gone")
    assert operator.writes == writes


def test_without_an_operator_everything_goes_with_its_owner(space: Space) -> None:
    operator = space.start().serving()
    space.apply()
    space.wait(space.complete, "all children are there")
    assert operator.stop() == 0
    space.kubectl("delete", "v4d", "d", "--timeout=300s")
    space.wait(lambda: space.names() == set(), "all children are gone")


def test_namespaces_go_with_an_operator_that_does_not_fight_it_and_without_one(
    control_plane: Cluster, space: Space, tmp_path: Path
) -> None:
    """Both at once: with a node, a cluster takes up to a minute for each, after pods that would have had grace."""
    with closing(Space(control_plane, tmp_path)) as other:
        control_plane.kubectl("create", "namespace", other.name)
        operator, gone = space.start().serving(), other.start().serving()
        for one in (space, other):
            one.apply()
            one.wait(one.complete, "all children are there")
        space.settled(operator)
        assert gone.stop() == 0
        control_plane.kubectl("delete", "namespace", space.name, other.name, "--timeout=300s")
        assert control_plane.kubectl("get", "namespace", space.name, other.name, "--ignore-not-found") == ""
        assert not operator.says("NameTaken")


@pytest.mark.parametrize("example", sorted((ROOT / "examples/planned").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_the_engine_lacks_is_said_of_a_new_one(space: Space, example: Path) -> None:
    """Nothing was made of it before, so that its status is new as a whole."""
    space.start().serving()
    body = yaml.safe_load(example.read_text())
    space.kubectl("apply", "--filename=-", text=json.dumps(body | {"metadata": {"name": "d"}}))
    space.wait(lambda: space.condition("Degraded").get("reason") == "EngineLacks", "it is said")
    assert space.condition("Ready")["status"] == "False"
    assert space.children() == []


def test_deleted_and_made_again_at_once(space: Space) -> None:
    operator = space.start().serving()
    space.apply()
    space.wait(space.complete, "all children are there")
    token = space.kubectl("get", "secret", "d-token", "--output=jsonpath={.data}")
    space.kubectl("delete", "v4d", "d", "--wait=false")
    space.wait(lambda: "d" not in space.kubectl("get", "v4d", "--output=name").split("/"), "the former one is gone")
    space.apply()
    uid = space.parent()["metadata"]["uid"]
    space.wait(space.complete, "all children are there again")

    def all_new() -> bool:
        owners = {child["metadata"]["ownerReferences"][0]["uid"] for child in space.children()}
        return owners == {uid} and space.complete()

    space.wait(all_new, "all children are of the new one")
    space.settled(operator)
    assert space.kubectl("get", "secret", "d-token", "--output=jsonpath={.data}") != token
    assert space.condition("Degraded").get("reason") != "NameTaken"


def test_another_operator_adopts_what_exists_without_a_write(space: Space) -> None:
    first = space.start().serving()
    space.apply()
    space.wait(space.complete, "all children are there")
    space.settled(first)
    assert first.stop() == 0
    second = space.start().serving()
    space.wait(lambda: second.looks > 0, "it looks at what exists")
    space.settled(second)
    assert second.writes == 0


def test_two_replicas_take_turns(space: Space) -> None:
    first = space.start().serving()
    second = space.start()
    space.wait(lambda: second.says("waiting: "), "the second one waits")
    assert second.ready()
    space.apply()
    space.wait(space.complete, "all children are there")
    began = time.monotonic()
    assert first.stop() == 0
    second.serving()
    assert time.monotonic() - began < 20, "a released Lease is taken at once, not after its time"
    space.kubectl("delete", "configmap", "d-router")
    space.wait(lambda: "ConfigMap/d-router" in space.names(), "the second one works")


def test_the_charts_rights_for_one_namespace_are_enough(space: Space, tmp_path: Path) -> None:
    rights = space.cluster.helm(
        *("template", "op", CHART, "--namespace", space.name, "--set", f"watch.namespaces={{{space.name}}}"),
        *("--show-only", "templates/operator/rbac.yaml", "--show-only", "templates/operator/serviceaccount.yaml"),
    )
    space.cluster.kubectl("apply", "--filename=-", input=rights)
    token = space.kubectl("create", "token", "op-v4serve").strip()
    config = yaml.safe_load(space.cluster.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    (tmp_path / "restricted").write_text(yaml.safe_dump(config))
    operator = space.start(space.cluster.environment | {"KUBECONFIG": str(tmp_path / "restricted")}).serving()
    space.apply()
    space.wait(space.complete, "all children are there")
    space.settled(operator)
    assert space.condition("Degraded")["reason"] not in ("ApplyFailed", "NameTaken")
    assert not operator.says("orbidden"), operator.log.read_text()


def test_an_api_server_that_is_restarted(space: Space) -> None:
    operator = space.start().serving()
    space.apply()
    space.wait(space.complete, "all children are there")
    space.cluster.restart_api_server()
    space.kubectl("delete", "configmap", "d-router")
    space.wait(lambda: "ConfigMap/d-router" in space.names(), "it goes on")
    space.apply(decode={"replicas": 3})
    space.wait(lambda: '"replicas": 3' in space.kubectl("get", "deploy", "--output=json"), "decode has 3 replicas")
    space.settled(operator)
