"""Pods of workers: restricted, complete, and open to what users add."""

from dataclasses import replace

import pytest

from tests.operator.world import SETTINGS, Obj, World, v4deployment
from v4_core.logs import LogFormat
from v4_core.settings import keys
from v4_operator.manifests.model_source import model_source
from v4_operator.manifests.pods import cores, requirements
from v4_operator.manifests.router_objects import router_deployment
from v4_operator.manifests.workers import Workers
from v4_operator.spec.size import Size
from v4_worker.config import WorkerConfig


def deployments(spec: Obj | None = None) -> dict[str, Obj]:
    made = Workers(v4deployment(spec), SETTINGS, "worker:1", "rev").deployments(Size(2, 3))
    return {deployment["metadata"]["name"]: deployment for deployment in made}


def pod_of(spec: Obj | None = None, role: str = "decode") -> Obj:
    template: Obj = deployments(spec)[f"demo-{role}-rev"]["spec"]["template"]
    return template


def flags(container: Obj) -> dict[str, str]:
    command, *rest = container["args"]
    assert command == container["name"]
    return dict(zip(rest[::2], rest[1::2], strict=True))


def test_each_pool_has_its_deployment() -> None:
    made = deployments()
    assert {name: d["spec"]["replicas"] for name, d in made.items()} == {"demo-prefill-rev": 2, "demo-decode-rev": 3}
    for deployment in made.values():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert pod_of()["metadata"]["labels"]["llm-d.ai/role"] == "decode"


@pytest.mark.parametrize(("deadline", "seconds"), [(1800, 10), (10, 9), (1, 0)])
def test_routers_have_time_to_prove_a_pod_before_another_goes_for_it(deadline: int, seconds: int) -> None:
    """The API server refuses as long a time as the progress deadline."""
    for deployment in deployments({"rollout": {"progressDeadlineSeconds": deadline}}).values():
        assert deployment["spec"]["minReadySeconds"] == seconds


def test_a_pair_is_one_pod_with_both_workers() -> None:
    made = Workers(v4deployment({"placement": "shared"}), SETTINGS, "worker:1", "rev").deployments(Size(2, 2))
    (pair,) = made
    pod = pair["spec"]["template"]
    assert (pair["metadata"]["name"], pair["spec"]["replicas"]) == ("demo-pair-rev", 2)
    assert [container["name"] for container in pod["spec"]["containers"]] == ["prefill", "decode"]
    ports = [port for container in pod["spec"]["containers"] for port in container["ports"]]
    assert {port["name"]: port["containerPort"] for port in ports} == {
        "prefill": 5101,
        "monitor-prefill": 9101,
        "decode": 5102,
        "monitor-decode": 9102,
    }
    assert pod["metadata"]["labels"]["llm-d.ai/role"] == "both"


def test_a_pair_has_the_additions_of_both_pools() -> None:
    def pool(name: str) -> Obj:
        return {
            "pod": {
                "env": [{"name": "WHO", "value": name}],
                "volumes": [{"name": name, "emptyDir": {}}],
                "volumeMounts": [{"name": name, "mountPath": "/extra"}],
            }
        }

    spec = {"placement": "shared", "prefill": pool("one"), "decode": pool("two")}
    (pair,) = Workers(v4deployment(spec), SETTINGS, "worker:1", "rev").deployments(Size(1, 1))
    pod = pair["spec"]["template"]["spec"]
    assert {"one", "two"} <= {volume["name"] for volume in pod["volumes"]}
    for container, who in zip(pod["containers"], ("one", "two"), strict=True):
        assert {"name": "WHO", "value": who} in container["env"]
        assert {"name": who, "mountPath": "/extra"} in container["volumeMounts"]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_pods_are_restricted(role: str) -> None:
    spec = pod_of(role=role)["spec"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == "demo-worker"
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
    assert {"name": "tmp", "emptyDir": {}} in spec["volumes"]


def test_every_argument_is_a_setting_of_workers() -> None:
    known = {key.flag for key in keys(WorkerConfig)}
    assert flags(pod_of()["spec"]["containers"][0]).keys() <= known


def test_settings_travel_as_arguments() -> None:
    spec = {
        "model": {"demo": {}, "contextLength": 4096},
        "cache": {"format": "bf16", "memoryPercent": 25, "maxSequences": 3, "checkpointEvery": 8},
        "decode": {"resources": {"requests": {"memory": "4Gi", "cpu": "2500m"}}},
        "transfer": {"leaseSeconds": 40, "pullTimeoutSeconds": 50},
        "rollout": {"drainSeconds": 70},
    }
    pod = pod_of(spec)["spec"]
    assert flags(pod["containers"][0]) == {
        "--model": "demo",
        "--host": "0.0.0.0",
        "--port": "5102",
        "--monitoring-port": "9102",
        "--token-file": "/etc/v4serve/token/token",
        "--format": "bf16",
        "--index-format": "auto",
        "--memory": str(1 << 30),
        "--max-sequences": "3",
        "--max-model-len": "4096",
        "--checkpoint-every": "8",
        "--lease-seconds": "40",
        "--pull-timeout-seconds": "50",
        "--drain-seconds": "70",
        "--threads": "3",
    }
    assert {"name": "OMP_NUM_THREADS", "value": "3"} in pod["containers"][0]["env"]
    assert pod["terminationGracePeriodSeconds"] == 100


def test_workers_and_routers_log_as_the_operator_does() -> None:
    """Only a format that is not the default is passed: an older image ends at a flag that it does not know."""
    formats: dict[LogFormat, list[str]] = {"human": [], "json": ["--log-format", "json"]}
    for log_format, arguments in formats.items():
        settings = replace(SETTINGS, log_format=log_format)
        workers = Workers(v4deployment({"placement": "shared"}), settings, "w", "rev").deployments(Size(1, 1))
        made = [*workers, router_deployment(v4deployment(), settings, "r")]
        given = [c["args"] for obj in made for c in obj["spec"]["template"]["spec"]["containers"]]
        assert [args[0] for args in given] == ["prefill", "decode", "router"]
        assert all([arg for arg in args if arg in ("--log-format", "json")] == arguments for args in given)


def test_slots_replace_a_share_of_memory() -> None:
    given = flags(pod_of({"cache": {"slots": 77}})["spec"]["containers"][0])
    assert given["--slots"] == "77"
    assert "--memory" not in given


def test_replace_needs_no_more_pods_than_there_are() -> None:
    def rolling(strategy: str) -> Obj:
        deployment = deployments({"rollout": {"strategy": strategy}})["demo-decode-rev"]
        update: Obj = deployment["spec"]["strategy"]["rollingUpdate"]
        return update

    assert rolling("Surge") == {"maxSurge": 1, "maxUnavailable": 0}
    assert rolling("Replace") == {"maxSurge": 0, "maxUnavailable": 1}


def test_probes_let_a_model_load_as_long_as_it_takes() -> None:
    container = pod_of()["spec"]["containers"][0]
    assert container["startupProbe"]["httpGet"] == {"path": "/health", "port": 9102}
    assert container["livenessProbe"]["httpGet"]["path"] == "/health", "which answers while weights are loaded"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 300


def test_what_users_add_never_replaces_what_is_set_here() -> None:
    """Admission refuses this already; an older object may still say it."""
    additions = {
        "labels": {"v4serve.dev/role": "mine", "team": "a"},
        "env": [{"name": "HOME", "value": "/root"}, {"name": "MINE", "value": "1"}],
        "volumes": [{"name": "token", "emptyDir": {}}, {"name": "more", "emptyDir": {}}],
        "volumeMounts": [{"name": "more", "mountPath": "/tmp"}, {"name": "more", "mountPath": "/more"}],
    }
    pod = pod_of({"decode": {"pod": additions}})
    container = pod["spec"]["containers"][0]
    assert pod["metadata"]["labels"]["v4serve.dev/role"] == "decode"
    assert pod["metadata"]["labels"]["team"] == "a"
    assert [e["value"] for e in container["env"] if e["name"] in ("HOME", "MINE")] == ["/tmp", "1"]
    assert next(v for v in pod["spec"]["volumes"] if v["name"] == "token")["secret"]["secretName"] == "demo-token"
    assert [m["name"] for m in container["volumeMounts"] if m["mountPath"] in ("/tmp", "/more")] == ["tmp", "more"]


def test_pull_secrets_of_operator_and_user_are_used_once_each() -> None:
    settings = replace(SETTINGS, pull_secrets=("hub", "mirror"))
    spec = {"decode": {"pod": {"imagePullSecrets": [{"name": "mirror"}, {"name": "mine"}]}}}
    pod = Workers(v4deployment(spec), settings, "worker:1", "rev").deployment("decode", 1)["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "hub"}, {"name": "mirror"}, {"name": "mine"}]


def test_spread_is_over_pods_of_the_same_pool_and_revision() -> None:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    (spread,) = pod_of({"decode": {"pod": {"topologySpreadConstraints": [constraint]}}})["spec"][
        "topologySpreadConstraints"
    ]
    assert spread["labelSelector"]["matchLabels"]["v4serve.dev/role"] == "decode"


@pytest.mark.parametrize(
    ("given", "devices", "expected"),
    [
        ({}, {}, {"requests": {"cpu": "500m", "memory": "2Gi"}}),
        ({"limits": {"memory": "1Gi"}}, {}, {"limits": {"memory": "1Gi"}, "requests": {"cpu": "500m"}}),
        ({"requests": {"cpu": 2}}, {}, {"requests": {"cpu": "2", "memory": "2Gi"}}),
        (
            {"requests": {"cpu": "1"}},
            {"nvidia.com/gpu": 4},
            {
                "requests": {"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "4"},
                "limits": {"nvidia.com/gpu": "4"},
            },
        ),
    ],
)
def test_requirements(given: Obj, devices: dict[str, int], expected: Obj) -> None:
    assert requirements(given, {"cpu": "500m", "memory": "2Gi"}, devices) == expected


@pytest.mark.parametrize(
    ("resources", "threads"),
    [
        ({"requests": {"cpu": "100m"}}, 1),
        ({"requests": {"cpu": "1"}, "limits": {"cpu": "8"}}, 1),
        ({"limits": {"cpu": "3500m"}, "requests": {}}, 4),
    ],
)
def test_threads_follow_the_request(resources: Obj, threads: int) -> None:
    assert cores(resources) == threads


@pytest.mark.parametrize(
    ("model", "argument", "volume"),
    [
        ({"demo": {}}, "demo", None),
        ({"pvc": {"claimName": "c"}}, "/model", {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}}),
        (
            {"pvc": {"claimName": "c", "path": "/a/b/"}},
            "/model/a/b",
            {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
        ),
        ({"hostPath": {"path": "/srv"}}, "/model", {"hostPath": {"path": "/srv", "type": "Directory"}}),
        (
            {"image": {"reference": "r:1", "path": "m"}},
            "/model/m",
            {"image": {"reference": "r:1", "pullPolicy": "IfNotPresent"}},
        ),
        (
            {"huggingFace": {"repository": "a/b", "revision": "refs/pr/1", "claim": "mine"}},
            "/model/a/b/refs_pr_1",
            {"persistentVolumeClaim": {"claimName": "mine", "readOnly": True}},
        ),
    ],
)
def test_model_sources(model: Obj, argument: str, volume: Obj | None) -> None:
    source = model_source(v4deployment({"model": model}).spec.model)
    assert source.argument == argument
    assert source.volume == (None if volume is None else {"name": "model", **volume})
    assert source.mount == (None if volume is None else {"name": "model", "mountPath": "/model", "readOnly": True})


def test_router_and_workers_read_the_same_model() -> None:
    world = World({"model": {"pvc": {"claimName": "c", "path": "p"}}})
    world.reconcile()
    for deployment in world.of("Deployment"):
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        assert "/model/p" in container["args"]
        assert {"name": "model", "mountPath": "/model", "readOnly": True} in container["volumeMounts"]
