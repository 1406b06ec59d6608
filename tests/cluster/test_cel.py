"""The CRD on a current Kubernetes' own CRD server: its rules are accepted, and refuse what they should."""

import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from tests.operator.spec.test_check import EXAMPLES, PLANNED, deployments, problems
from tests.operator.wrong import WRONG, Wrong, manifest
from v4_core.kubernetes import GROUP, PLURAL, VERSION
from v4_operator.spec.accelerators import ACCELERATORS

pytestmark = pytest.mark.cluster

CRD = Path(__file__).parents[2] / "charts/v4serve/files/crd.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
STRICT_DRY_RUN = "?dryRun=All&fieldValidation=Strict"
OBJECTS = f"/apis/{GROUP}/{VERSION}/namespaces/default/{PLURAL}"


class Server:
    """The CRD server, asked by path: it has no discovery, and a typed client would hide unknown fields."""

    def __init__(self, kubeconfig: Path) -> None:
        configuration = client.Configuration()
        config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        self._api = client.ApiClient(configuration)
        self._host = configuration.host

    def call(self, method: str, path: str, body: Any = None, kind: str = "json") -> tuple[int, dict[str, Any]]:
        """Status and body of a request."""
        types = {"Accept": "application/json", "Content-Type": f"application/{kind}"}
        answer = self._api.call_api(method, self._host + path, types, body)
        text = answer.read()
        return answer.status, json.loads(text) if text.startswith(b"{") else {}  # before a CRD is served: no JSON

    def create(self, obj: dict[str, Any], query: str = STRICT_DRY_RUN) -> tuple[int, dict[str, Any]]:
        """Create a V4Deployment, by default as a dry run."""
        metadata = {**obj["metadata"], "namespace": "default"}
        return self.call("POST", OBJECTS + query, {**obj, "metadata": metadata})


def until_found(server: Server, path: str, found: bool) -> None:
    """Wait until the path answers, or until it does not any more."""
    deadline = time.monotonic() + 60
    while (server.call("GET", path)[0] == 200) != found:
        assert time.monotonic() < deadline, f"{path}: found should be {found}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def server(crd_server: Path) -> Iterator[Server]:
    """A CRD server that serves V4Deployments."""
    server = Server(crd_server)
    crd = yaml.safe_load(CRD.read_text())
    status, answer = server.call("POST", f"{CRDS}?fieldValidation=Strict", crd)
    assert status == 201, answer
    until_found(server, OBJECTS, True)
    yield server
    server.call("DELETE", f"{CRDS}/{PLURAL}.{GROUP}")
    until_found(server, f"{CRDS}/{PLURAL}.{GROUP}", False)


@pytest.mark.parametrize("wrong", [w for w in WRONG if w.refused != "operator"], ids=lambda wrong: wrong.name)
def test_each_mistake_is_refused(server: Server, wrong: Wrong) -> None:
    status, answer = server.create(wrong.manifest())
    assert status == 422, answer
    if wrong.refused == "rule":
        (cause,) = answer["details"]["causes"]
        assert re.search(wrong.says, cause["message"].replace("\n", " ")), cause


@pytest.mark.parametrize("wrong", [w for w in WRONG if w.refused == "operator"], ids=lambda wrong: wrong.name)
def test_the_operator_has_to_find_the_rest(server: Server, wrong: Wrong) -> None:
    status, answer = server.create(wrong.manifest())
    assert status == 201, answer


def test_every_rule_refuses_something(server: Server) -> None:
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rules = schema["x-kubernetes-validations"] + schema["properties"]["spec"]["x-kubernetes-validations"]
    mirrored = [w.manifest() for w in WRONG if w.refused == "rule"]
    for obj in mirrored[:]:
        spec = obj["spec"]
        mirrored.append({**obj, "spec": {**spec, "prefill": spec.get("decode", {}), "decode": spec.get("prefill", {})}})
    answers = [server.create(obj)[1] for obj in mirrored]
    seen = {cause["message"] for answer in answers for cause in answer.get("details", {}).get("causes", ())}
    assert [rule["message"] for rule in rules if not any(rule["message"] in message for message in seen)] == []


@pytest.mark.parametrize("file", [*EXAMPLES, *PLANNED], ids=lambda file: file.stem)
def test_examples_are_accepted(server: Server, file: Path) -> None:
    for obj in deployments(file):
        status, answer = server.create(obj)
        assert status == 201, answer


def test_defaults_and_scale(server: Server) -> None:
    status, made = server.create(manifest({}, name="made"), query="")
    assert status == 201, made
    path = f"{OBJECTS}/made"
    assert made["spec"]["cache"] == {"format": "auto", "indexFormat": "auto", "maxSequences": 16, "checkpointEvery": 0}
    assert made["spec"]["decode"]["parallel"] == {"tensor": 1, "data": 1}
    status, answer = server.call("PATCH", f"{path}/scale", {"spec": {"replicas": 3}}, "merge-patch+json")
    assert status == 200, answer
    decode = {"replicas": 2, "selector": "v4serve.dev/deployment=made", "summary": "2/3"}
    server.call("PATCH", f"{path}/status", {"status": {"decode": decode}}, "merge-patch+json")
    scale = server.call("GET", f"{path}/scale")[1]
    assert (scale["spec"]["replicas"], scale["status"]) == (3, {"replicas": 2, "selector": decode["selector"]})
    assert server.call("GET", path)[1]["spec"]["prefill"]["replicas"] == 1
    shared = {"spec": {"placement": "shared"}}
    status, answer = server.call("PATCH", path, shared, "merge-patch+json")
    assert (status, "same number" in answer["message"]) == (422, True)
    assert server.call("DELETE", path)[0] == 200


def random_spec(draw: random.Random) -> dict[str, Any]:
    """A spec that the schema takes, with fields that contradict each other now and then."""

    def some(*values: Any) -> dict[str, Any]:
        return {key: draw.choice(choices) for key, choices in values if draw.random() < 0.5}

    def pool() -> dict[str, Any]:
        sizes = [(0, 1, 1), (1, 1, 1), (2, 2, 1), (4, 2, 2), (8, 8, 1), (8, 1, 4), (3, 1, 3), (16, 16, 1)]
        count, tensor, data = draw.choice(sizes)
        kind = draw.choice(["cpu", *ACCELERATORS]) if count else draw.choice(["cpu", "cpu", "h200"])
        return {
            "replicas": draw.choice([0, 1, 1, 2]),
            "accelerator": {"type": kind, "count": count},
            "parallel": {"tensor": tensor, "data": data},
        }

    host, claim = {"hostPath": {"path": "/m"}}, {"pvc": {"claimName": "w"}}
    sources: list[dict[str, Any]] = [{"demo": {}}, host, {}, {"demo": {}, **claim}]
    model = draw.choices(sources, [6, 6, 1, 1])[0]
    formats = ("auto", "bf16", "fp8")
    return {
        "model": model | some(("profile", ["demo", "flash", "pro"]), ("contextLength", [2, 8192, 8193, 1 << 20])),
        "cache": some(
            ("format", formats), ("indexFormat", [*formats, "fp4"]), ("slots", [1000]), ("memoryPercent", [50])
        ),
        "prefill": pool(),
        "decode": pool(),
        "router": some(("auth", ["keys", "none"]), ("apiKeysSecret", ["keys"])),
        "rollout": some(
            ("strategy", ["Surge", "Replace"]), ("drainSeconds", [0, 600]), ("progressDeadlineSeconds", [600, 60])
        ),
        "transfer": some(("transport", ["auto", "grpc", "shared-memory", "nvlink", "nixl"])),
        **some(("placement", ["separate", "shared"])),
    }


def test_rules_and_operator_judge_alike(server: Server) -> None:
    draw, verdicts = random.Random(4), set()
    for _ in range(400):
        obj = manifest(random_spec(draw))
        status, answer = server.create(obj)
        found = [problem for problem in problems(obj) if problem.reason == "InvalidSpec"]
        assert status == (422 if found else 201), (obj["spec"], answer, found)
        verdicts.add(status)
    assert verdicts == {201, 422}
