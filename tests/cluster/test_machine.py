"""The test cluster itself: what other tests of this folder build on."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machine.cluster import Cluster, ServingCluster
from tests.cluster.machine.errors import ClusterError, CommandFailed, PartMissing
from tests.cluster.machine.external import ExternalCluster
from tests.cluster.machine.local import LocalCluster
from tests.cluster.machine.nameserver import hosts
from tests.cluster.machine.recipes.kubernetes import let_go_of_deleted_pods
from tests.cluster.machine.tools_image import BUSYBOX
from tests.cluster.machine.waiting import TimedOut, wait

pytestmark = pytest.mark.cluster

_DEADLINE_SECONDS = 60  # ten times the usual

# As strict as the pods of the project are: what this node cannot do, they could not either.
WEB = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 0
      automountServiceAccountToken: false
      securityContext: {{runAsNonRoot: true, runAsUser: 65532, seccompProfile: {{type: RuntimeDefault}}}}
      containers:
      - name: web
        image: {BUSYBOX}
        imagePullPolicy: Never
        command: [sh, -c, "hostname > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"]
        readinessProbe: {{httpGet: {{path: /index.html, port: 8080}}, periodSeconds: 1, timeoutSeconds: 10}}
        resources: {{requests: {{cpu: 10m}}, limits: {{memory: 64Mi}}}}
        securityContext:
          readOnlyRootFilesystem: true
          allowPrivilegeEscalation: false
          capabilities: {{drop: [ALL]}}
        volumeMounts: [{{name: tmp, mountPath: /tmp}}]
      volumes: [{{name: tmp, emptyDir: {{}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080, protocol: TCP}}]}}
"""


@pytest.fixture(scope="module")
def web(cluster: ServingCluster) -> Iterator[str]:
    """Namespace with two ready pods behind the Service `web`."""
    namespace = "machine"
    cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl("apply", "--namespace", namespace, "--filename", "-", input=WEB)
    cluster.kubectl("rollout", "status", "deployment/web", "--namespace", namespace, f"--timeout={_DEADLINE_SECONDS}s")
    yield namespace
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=_DEADLINE_SECONDS) as answer:
        return str(answer.read().decode().strip())


def _pod_names(cluster: ServingCluster, namespace: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in cluster.pods(namespace, "app=web")}


def test_a_service_is_reached_and_each_connection_gets_a_pod_of_its_own_choice(
    cluster: ServingCluster, web: str
) -> None:
    with cluster.connect(web, "web", 80) as url:
        answered: set[str] = set()

        def answers() -> int:
            answered.add(_read(url))
            return len(answered)

        pods = 2 if isinstance(cluster, LocalCluster) else 1
        wait(lambda: answers() == pods, _DEADLINE_SECONDS, f"{pods} pods answered")
    assert answered <= _pod_names(cluster, web)
    with pytest.raises(OSError):
        _read(url)


def test_a_port_that_the_service_lacks_is_told(cluster: ServingCluster, web: str) -> None:
    with pytest.raises(ClusterError, match="no port 81"), cluster.connect(web, "web", 81):
        pass


def test_pods_find_services_by_name_and_no_other_names(cluster: ServingCluster, web: str) -> None:
    """Short names go by the search domains of the pod's namespace; nothing beyond the cluster is asked."""
    inside = ("exec", "--namespace", web, "deployment/web", "--", "wget", "-q", "-O", "-")
    for name in ("web", f"web.{web}", f"web.{web}.svc.cluster.local"):
        assert cluster.kubectl(*inside, f"http://{name}/").strip() in _pod_names(cluster, web)
    with pytest.raises(CommandFailed, match="bad address"):
        cluster.kubectl(*inside, "http://nowhere.example/")


def test_hosts_of_services_and_of_pods_behind_headless_ones() -> None:
    def item(name: str, **content: object) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": "n"}, **content}

    services = [
        item("usual", spec={"clusterIP": "10.96.0.7"}),
        item("headless", spec={"clusterIP": "None"}),
        item("empty", spec={"clusterIP": "None"}),
        item("elsewhere", spec={"type": "ExternalName", "externalName": "example.org"}),
    ]
    addresses = [{"ip": "10.244.0.2", "hostname": "set-0"}, {"ip": "10.244.0.3"}]
    endpoints = [item("usual"), item("headless", subsets=[{"addresses": addresses}]), item("empty", subsets=None)]
    assert hosts(services, endpoints).splitlines() == [
        "10.244.0.2 headless.n.svc.cluster.local",
        "10.244.0.2 set-0.headless.n.svc.cluster.local",
        "10.244.0.3 headless.n.svc.cluster.local",
        "10.96.0.7 usual.n.svc.cluster.local",
    ]


def test_the_api_server_restarts_and_pods_do_not(cluster: ServingCluster, web: str) -> None:
    def started() -> dict[str, str]:
        return {
            status["containerID"]: status["state"]["running"]["startedAt"]
            for pod in cluster.pods(web)
            for status in pod["status"]["containerStatuses"]
        }

    before = started()
    with cluster.connect(web, "web", 80) as url:
        cluster.stop_api_server()
        with pytest.raises(CommandFailed):
            cluster.kubectl("get", "--raw", "/readyz")
        assert _read(url)
        cluster.start_api_server()
    assert started() == before


def test_helm_installs_and_removes(cluster: ServingCluster, web: str, tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: one, version: 1.0.0}")
    (tmp_path / "templates/map.yaml").write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: made}}")
    cluster.helm("install", "one", str(tmp_path), "--namespace", web)
    assert cluster.get("configmap", "made", "--namespace", web)["kind"] == "ConfigMap"
    cluster.helm("uninstall", "one", "--namespace", web)
    assert not cluster.kubectl("get", "configmap", "made", "--namespace", web, "--ignore-not-found")


def test_the_state_of_a_failed_test_can_be_read(cluster: ServingCluster, web: str, tmp_path: Path) -> None:
    cluster.dump(tmp_path)
    assert "service/web" in (tmp_path / "objects.txt").read_text()
    assert "Scheduled" in (tmp_path / "events.txt").read_text()
    assert {f"{web}.{name}.log" for name in _pod_names(cluster, web)} <= {path.name for path in tmp_path.iterdir()}


def test_a_condition_that_stays_false_is_told() -> None:
    with pytest.raises(TimedOut, match=r"until pigs fly; the last answer was \[\]"):
        wait(list, 0.0, "pigs fly")


def test_the_kubelet_ends_a_pod_without_waiting_for_its_sandbox(tmp_path: Path) -> None:
    """Another source than that of 1.20.2 is refused, so that the fix is not lost in silence."""
    file = tmp_path / "pkg/kubelet/kubelet_pods.go"
    file.parent.mkdir(parents=True)
    before, after = "\t// containers\n", "\tif kl.podVolumesExist(uid) {\n\t}\n"
    file.write_text(f"{before}\t// pod's sandboxes should be deleted\n\tif sandboxes {{\n\t}}\n\n{after}")
    let_go_of_deleted_pods(tmp_path)
    assert file.read_text() == before + after
    with pytest.raises(PartMissing, match=r"kubelet_pods\.go is not that of"):
        let_go_of_deleted_pods(tmp_path)


def test_any_other_cluster_serves_the_same_methods(cluster: ServingCluster, web: str) -> None:
    other = ExternalCluster(cluster.kubeconfig, BUSYBOX)
    try:
        assert other.image == BUSYBOX
        with other.connect(web, "web", 80) as url:
            assert _read(url) in _pod_names(other, web)
        with pytest.raises(pytest.skip.Exception, match="cannot be stopped"):
            other.restart_api_server()
    finally:
        other.close()


def test_the_crd_server_evaluates_rules(control_plane: Cluster, crd_server: Path) -> None:
    """Which the API server of this cluster, being older, would drop."""

    def create(path: str, content: dict[str, Any]) -> dict[str, Any]:
        arguments = ("--kubeconfig", str(crd_server), "create", "--raw", path, "--filename", "-")
        answer: dict[str, Any] = json.loads(control_plane.kubectl(*arguments, input=json.dumps(content)))
        return answer

    rule = {"rule": "self.low <= self.high", "message": "low must not exceed high"}
    numbers = {name: {"type": "integer"} for name in ("low", "high")}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": numbers}}}
    schema["properties"]["spec"]["x-kubernetes-validations"] = [rule]  # type: ignore[index]
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "Range", "plural": "ranges"}
    create(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "ranges.test.v4serve.dev"},
            "spec": {"group": "test.v4serve.dev", "scope": "Namespaced", "names": names, "versions": [version]},
        },
    )
    path = "/apis/test.v4serve.dev/v1/namespaces/default/ranges"

    def served() -> bool:
        return "items" in control_plane.kubectl("--kubeconfig", str(crd_server), "get", "--raw", path, check=False)

    control_plane.wait(served, _DEADLINE_SECONDS, "the resource is served")
    kind = {"apiVersion": "test.v4serve.dev/v1", "kind": "Range"}
    create(path, {**kind, "metadata": {"name": "right"}, "spec": {"low": 1, "high": 2}})
    with pytest.raises(CommandFailed, match="low must not exceed high"):
        create(path, {**kind, "metadata": {"name": "wrong"}, "spec": {"low": 3, "high": 2}})
