"""The router's objects: what it is started with, who it is, and how it is reached."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.operator.world import SETTINGS, Obj, World, v4deployment
from v4_cli.main import app
from v4_operator.manifests.router_objects import access_objects, endpoint, policy_map, router_deployment, service
from v4_router.policy import Policy, read_policy


def pod_of(spec: Obj | None = None) -> Obj:
    pod: Obj = router_deployment(v4deployment(spec), SETTINGS, "router:1")["spec"]["template"]["spec"]
    return pod


def test_the_router_is_told_all_it_needs() -> None:
    pod = pod_of({"model": {"demo": {}, "servedName": "chat"}, "rollout": {"drainSeconds": 70}})
    command, *rest = pod["containers"][0]["args"]
    assert command == "router"
    assert dict(zip(rest[::2], rest[1::2], strict=True)) == {
        "--model": "demo",
        "--served-name": "chat",
        "--host": "0.0.0.0",
        "--port": "8000",
        "--monitoring-port": "9100",
        "--namespace": "models",
        "--deployment": "demo",
        "--token-file": "/etc/v4serve/token/token",
        "--policy": "/etc/v4serve/policy/policy.yaml",
        "--drain-seconds": "70",
        "--api-keys": "/etc/v4serve/keys/keys.yaml",
    }
    assert pod["terminationGracePeriodSeconds"] == 100
    assert pod["automountServiceAccountToken"] is True
    assert pod["serviceAccountName"] == "demo-router"


@pytest.mark.parametrize("command", ["router", "prefill", "decode", "fetch"])
def test_the_command_line_knows_every_flag(command: str) -> None:
    from tests.operator.manifests.test_download import job_of
    from v4_operator.manifests.workers import Workers
    from v4_operator.spec.size import Size

    v4d = v4deployment({"router": {"auth": "none"}})
    made = [*Workers(v4d, SETTINGS, "w", "r").deployments(Size(1, 1)), router_deployment(v4d, SETTINGS, "r"), job_of()]
    containers = [container for obj in made for container in obj["spec"]["template"]["spec"]["containers"]]
    (args,) = [container["args"] for container in containers if container["args"][0] == command]
    text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert not [arg for arg in args if arg.startswith("--") and arg not in text]


@pytest.mark.parametrize(
    ("router", "secret"), [({}, "demo-api-key"), ({"apiKeysSecret": "mine"}, "mine"), ({"auth": "none"}, None)]
)
def test_keys(router: Obj, secret: str | None) -> None:
    pod = pod_of({"router": router})
    mounted = [v["secret"]["secretName"] for v in pod["volumes"] if v["name"] == "api-keys"]
    assert mounted == ([secret] if secret else [])
    assert ("--insecure" in pod["containers"][0]["args"]) is (secret is None)


def test_the_policy_is_what_the_router_reads(tmp_path: Path) -> None:
    spec = {
        "router": {
            "limits": {"requestTimeoutSeconds": 60, "maxRequests": 7},
            "policy": {"withoutPrefill": "refuse"},
        },
        "transfer": {"onFailure": "fail"},
    }
    file = tmp_path / "policy.yaml"
    file.write_text(policy_map(v4deployment(spec), SETTINGS)["data"]["policy.yaml"])
    assert read_policy(file) == Policy(60, 7, "refuse", "fail")
    assert yaml.safe_load(file.read_text())["max_requests"] == 7


def test_prompts_are_logged_where_that_is_asked_for(tmp_path: Path) -> None:
    """Else the key is left out, which routers of before it refuse."""
    file = tmp_path / "policy.yaml"
    file.write_text(policy_map(v4deployment({"router": {"logPrompts": True}}), SETTINGS)["data"]["policy.yaml"])
    assert read_policy(file) == Policy(log_prompts=True)
    assert "log_prompts" not in policy_map(v4deployment({}), SETTINGS)["data"]["policy.yaml"]


@pytest.mark.parametrize("seconds", [0, 60])
def test_the_overlap_of_keys_is_told_where_it_is_asked_for(tmp_path: Path, seconds: int) -> None:
    file = tmp_path / "policy.yaml"
    spec = {"router": {"keyOverlapSeconds": seconds}}
    file.write_text(policy_map(v4deployment(spec), SETTINGS)["data"]["policy.yaml"])
    assert read_policy(file) == Policy(key_overlap_seconds=seconds)
    assert "key_overlap_seconds" not in policy_map(v4deployment({}), SETTINGS)["data"]["policy.yaml"]


def test_a_router_may_read_pods_of_its_namespace_and_nothing_else() -> None:
    worker, router, role, binding = access_objects(v4deployment(), SETTINGS)
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "demo-router", "namespace": "models"}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert worker["automountServiceAccountToken"] is router["automountServiceAccountToken"] is False


def test_the_users_service_account_gets_the_router_s_rights() -> None:
    v4d = v4deployment({"router": {"pod": {"serviceAccountName": "mine"}}})
    assert access_objects(v4d, SETTINGS)[-1]["subjects"][0]["name"] == "mine"
    assert router_deployment(v4d, SETTINGS, "r")["spec"]["template"]["spec"]["serviceAccountName"] == "mine"


def test_the_service_is_where_status_says() -> None:
    v4d = v4deployment({"router": {"service": {"port": 8080, "type": "NodePort", "annotations": {"a": "b"}}}})
    made = service(v4d, SETTINGS)
    assert made["spec"]["ports"] == [{"name": "http", "port": 8080, "targetPort": 8000, "protocol": "TCP"}]
    assert (made["spec"]["type"], made["metadata"]["annotations"]) == ("NodePort", {"a": "b"})
    assert endpoint(v4d) == "http://demo.models.svc:8080/v1"
    pods = router_deployment(v4d, SETTINGS, "r")["spec"]["template"]["metadata"]["labels"]
    assert made["spec"]["selector"].items() <= pods.items()


def test_a_new_router_serves_before_an_old_one_goes() -> None:
    made = router_deployment(v4deployment(), SETTINGS, "r")
    assert made["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_new_service_account_rolls_the_router_once() -> None:
    """The token in the pods is the former one's. A router that is made again has a good one."""
    world = World({"router": {"replicas": 2}})
    world.settle()

    def routers() -> set[str]:
        world.settle()
        pods = [pod["metadata"] for pod in world.pods(role="router")]
        return {pod["name"] for pod in pods if "deletionTimestamp" not in pod}

    pods = routers()
    world.tick(60)
    del world.objects["ServiceAccount", "demo-router"]
    rolled = routers()
    assert len(rolled) == 2
    assert not rolled & pods
    generation = world.get("Deployment", "demo-router")["metadata"]["generation"]
    world.tick(60)
    del world.objects["ServiceAccount", "demo-router"]
    assert not routers() & rolled
    assert world.get("Deployment", "demo-router")["metadata"]["generation"] == generation + 1, "rolled once, not twice"
    world.tick(60)
    del world.objects["Deployment", "demo-router"]
    for pod in world.pods(role="router"):
        world.kill(pod)
    last = routers()
    assert len(last) == 2
    assert "v4serve.dev/service-account" not in str(world.get("Deployment", "demo-router"))


def test_the_users_own_service_account_is_not_watched() -> None:
    world = World({"router": {"pod": {"serviceAccountName": "mine"}}})
    world.settle()
    world.tick(60)
    del world.objects["ServiceAccount", "demo-router"]
    pods = world.pods(role="router")
    world.settle()
    assert world.pods(role="router") == pods
