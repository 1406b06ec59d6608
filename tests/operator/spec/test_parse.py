from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.operator.schema import SPEC, fields
from tests.operator.wrong import manifest
from v4_operator.spec.fields import quantity
from v4_operator.spec.parse import SpecError, parse
from v4_operator.spec.v4deployment import (
    Accelerator,
    Cache,
    HuggingFace,
    Model,
    Parallel,
    PodOverrides,
    Pool,
    Router,
    Spec,
    V4Deployment,
)

FULL = """
image: workers:2
model:
  huggingFace: {repository: owner/name, revision: v2, tokenSecret: hf, claim: weights, size: 10Gi, storageClass: fast,
                accessMode: ReadWriteOnce}
  profile: flash
  servedName: v4
  revision: second
  contextLength: 4096
cache: {format: bf16, indexFormat: fp32, memoryPercent: 40, maxSequences: 8, checkpointEvery: 16}
prefill:
  replicas: 2
  resources: {requests: {cpu: 2}, limits: {memory: 4Gi}}
  accelerator: {type: h200, count: 4, memory: 130Gi}
  parallel: {tensor: 2, data: 2}
  pod:
    labels: {team: a}
    annotations: {note: b}
    nodeSelector: {zone: c}
    tolerations: [{operator: Exists}]
    affinity: {nodeAffinity: {}}
    topologySpreadConstraints: [{maxSkew: 1}]
    env: [{name: A, value: b}]
    volumes: [{name: own, emptyDir: {}}]
    volumeMounts: [{name: own, mountPath: /own}]
    priorityClassName: high
    runtimeClassName: nvidia
    serviceAccountName: me
    imagePullSecrets: [{name: one}, {name: two}]
decode: {replicas: 0}
placement: shared
router:
  replicas: 3
  image: router:2
  resources: {requests: {cpu: 1}}
  service: {type: NodePort, port: 81, annotations: {a: b}}
  limits: {requestTimeoutSeconds: 60, maxRequests: 7}
  policy: {withoutPrefill: refuse}
  auth: none
  apiKeysSecret: keys
  logPrompts: true
  keyOverlapSeconds: 0
transfer: {transport: nvlink, leaseSeconds: 5, pullTimeoutSeconds: 6, onFailure: fail}
rollout: {strategy: Replace, drainSeconds: 0, progressDeadlineSeconds: 9}
networkPolicy: {scrapeFrom: [{podSelector: {}}]}
"""


def test_every_field() -> None:
    spec = parse(manifest(yaml.safe_load(FULL) | {"model": yaml.safe_load(FULL)["model"]})).spec
    assert spec.image == "workers:2"
    assert spec.model == Model(
        source="huggingFace",
        hugging_face=HuggingFace("owner/name", "v2", "hf", "weights", "10Gi", "fast", "ReadWriteOnce"),
        profile="flash",
        served_name="v4",
        revision="second",
        context_length=4096,
    )
    assert spec.cache == Cache("bf16", "fp32", 40, 0, 8, 16)
    assert spec.prefill == Pool(
        replicas=2,
        resources={"requests": {"cpu": 2}, "limits": {"memory": "4Gi"}},
        accelerator=Accelerator("h200", 4, 130 << 30),
        parallel=Parallel(2, 2),
        pod=PodOverrides(
            labels={"team": "a"},
            annotations={"note": "b"},
            node_selector={"zone": "c"},
            tolerations=({"operator": "Exists"},),
            affinity={"nodeAffinity": {}},
            topology_spread=({"maxSkew": 1},),
            env=({"name": "A", "value": "b"},),
            volumes=({"name": "own", "emptyDir": {}},),
            volume_mounts=({"name": "own", "mountPath": "/own"},),
            priority_class="high",
            runtime_class="nvidia",
            service_account="me",
            pull_secrets=("one", "two"),
        ),
    )
    assert spec.decode == Pool(replicas=0)
    assert spec.placement == "shared"
    assert spec.router == Router(
        replicas=3,
        image="router:2",
        resources={"requests": {"cpu": 1}},
        service_type="NodePort",
        service_port=81,
        service_annotations={"a": "b"},
        request_timeout_seconds=60,
        max_requests=7,
        without_prefill="refuse",
        auth="none",
        api_keys_secret="keys",
        log_prompts=True,
        key_overlap_seconds=0,
    )
    assert (spec.transfer.transport, spec.transfer.on_failure) == ("nvlink", "fail")
    assert (spec.transfer.lease_seconds, spec.transfer.pull_timeout_seconds) == (5, 6)
    assert (spec.rollout.strategy, spec.rollout.drain_seconds) == ("Replace", 0)
    assert spec.rollout.progress_deadline_seconds == 9
    assert spec.scrape_from == ({"podSelector": {}},)


def test_the_least_one() -> None:
    obj = manifest({}, uid="u1", generation=3)
    expected = V4Deployment("chat", "default", "u1", 3, deleting=False, spec=Spec(model=Model(profile="demo")))
    assert parse(obj) == expected


@pytest.mark.parametrize(
    ("model", "location", "path"),
    [
        ({"pvc": {"claimName": "c", "path": "p/q"}}, "c", "p/q"),
        ({"hostPath": {"path": "/m"}}, "/m", ""),
        ({"image": {"reference": "r:1", "path": "p"}}, "r:1", "p"),
    ],
)
def test_sources(model: dict[str, Any], location: str, path: str) -> None:
    found = parse(manifest({"model": model})).spec.model
    assert (found.source, found.location, found.path, found.profile) == (next(iter(model)), location, path, "")


def test_the_served_name_is_the_deployments_unless_given() -> None:
    assert parse(manifest({})).served_name == "chat"
    assert parse(manifest({"model": {"demo": {}, "servedName": "v4"}})).served_name == "v4"


def test_deletion() -> None:
    assert parse(manifest({}, deletionTimestamp="2026-01-01T00:00:00Z")).deleting


def refusal(obj: dict[str, Any]) -> SpecError | None:
    """Why an object is no record."""
    try:
        parse(obj)
    except SpecError as error:
        return error
    return None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 40) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(path=st.sampled_from([path for path, _ in fields(SPEC) if "[]" not in path]), value=JSON)
def test_a_value_of_any_type_is_a_record_or_an_error_for_people(path: tuple[str, ...], value: Any) -> None:
    for name in reversed(path):
        value = {name: value}
    obj = manifest(value) if path[0] != "model" else manifest({"model": value["model"]})
    error = refusal(obj)
    assert error is None or (error.reason == "InvalidSpec" and path[0] in error.message)


@given(obj=st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
def test_any_object_is_a_record_or_an_error(obj: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        parse(obj)


@pytest.mark.parametrize(
    ("written", "amount"),
    [(4, 4), ("500m", 0.5), ("16Gi", 16 << 30), ("1.5k", 1500), (".5Mi", 1 << 19), ("2e3", 2000), ("0", 0)],
)
def test_quantities(written: object, amount: float) -> None:
    assert quantity(written) == amount


@pytest.mark.parametrize(
    "written", ["", "Gi", "2 gigs", "-1", -1, "1ki", "1.2.3", "NaN", "inf", True, None, 1.5, [], "1e9999999999999"]
)
def test_no_quantities(written: object) -> None:
    assert quantity(written) is None
