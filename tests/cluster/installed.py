"""One release of the chart and one V4Deployment, which tests change and bring back to where they were.

Everything a test does goes through kubectl and helm, as a user's does.
"""

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.answers import Answers
from tests.cluster.load import Load, Stream
from tests.cluster.machine.cluster import ServingCluster
from v4_core.kubernetes import MANAGER

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.yaml"
CHART = str(ROOT / "charts" / "v4serve")
RELEASE = "v4serve"
SYSTEM = "serving-system"  # namespace of the release
NAMESPACE = "serving"
NAME = "demo"
READY_SECONDS = 120.0  # that a V4Deployment may take to serve on a machine with nothing else to do
STREAM_SECONDS = 120.0
DEADLINE_SECONDS = 240.0  # for anything else that takes a pod
CHILDREN = "deployment,service,configmap,secret,serviceaccount,role,rolebinding,networkpolicy,pdb,job"

Json = dict[str, Any]


class Installed:
    """The release, and the V4Deployment `demo` once it was applied."""

    def __init__(self, cluster: ServingCluster) -> None:
        self.cluster = cluster
        repository, _, tag = cluster.image.rpartition(":")
        same = {"repository": repository, "tag": tag}
        self.values: Json = {"image": {"router": same, "worker": same}}

        self.ready_seconds = 0.0  # from the demo's creation to Ready

    def install(self) -> None:
        """As the README has it: the chart, then the demo, then wait."""
        for namespace in (SYSTEM, NAMESPACE):
            self.cluster.kubectl("create", "namespace", namespace)
        self.helm("install")
        self.cluster.wait(lambda: self.kubectl("get", "v4d", check=False) == "", 60, "the definition is served")
        began = time.monotonic()
        self.kubectl("apply", "--filename", str(DEMO))
        self.kubectl("wait", f"v4d/{NAME}", "--for=condition=Ready", f"--timeout={DEADLINE_SECONDS:.0f}s")
        self.ready_seconds = time.monotonic() - began

    def remove(self) -> None:
        """Everything, the definition and with it every V4Deployment too; what ends slowly is not waited for."""
        self.cluster.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--ignore-not-found")
        for what in (("crd", "v4deployments.v4serve.dev"), ("namespace", SYSTEM, NAMESPACE)):
            self.cluster.kubectl("delete", *what, "--ignore-not-found", "--wait=false")

    def reset(self) -> None:
        """As it was installed, and settled; quick where it is so already."""
        one = {"replicas": 1}
        decode = one | {"resources": example()["decode"]["resources"]}
        rollout = {"strategy": "Surge", "drainSeconds": 300, "progressDeadlineSeconds": 1800}
        model: Json = {"demo": {}, "hostPath": None, "revision": None}
        self.patch({"model": model, "prefill": one, "decode": decode, "router": one, "rollout": rollout})
        self.settle()

    # The release.

    def helm(self, verb: str, *flags: str, **values: Any) -> str:
        """Install or upgrade with these values beside the image; waits for the operator."""
        text = yaml.safe_dump(self.values | values)
        where = ("--namespace", SYSTEM, "--wait", "--timeout=4m", "--values=-")
        return self.cluster.helm(verb, RELEASE, CHART, *where, *flags, input=text)

    def scale_operator(self, replicas: int) -> None:
        """By kubectl, and wait until so many are ready; with none, until the last has given up its Lease."""
        self.cluster.kubectl("scale", f"deployment/{RELEASE}", f"--replicas={replicas}", "--namespace", SYSTEM)

        def there() -> bool:
            ready = [pod for pod in self.operators() if is_ready(pod) and not is_leaving(pod)]
            return len(ready) == replicas and bool(replicas or not self.leader())

        self.cluster.wait(there, DEADLINE_SECONDS, f"there are {replicas} operator pods")

    def operators(self) -> list[Json]:
        """Pods of the operator."""
        return self.cluster.pods(SYSTEM, "app.kubernetes.io/component=operator")

    def restart_operator(self) -> None:
        """Delete its pods; another one comes by itself."""
        self.cluster.kubectl("delete", "pod", "--namespace", SYSTEM, "--wait=false", *map(name_of, self.operators()))

    def leader(self) -> str:
        """Name of the operator pod that holds the Lease; empty if nobody does."""
        holder = ("--ignore-not-found", "--output=jsonpath={.spec.holderIdentity}")
        return self.cluster.kubectl("get", "lease", RELEASE, "--namespace", SYSTEM, *holder).partition("_")[0]

    def looks(self) -> int:
        """How often the leader has looked at a V4Deployment since it started."""
        return self._counted("v4serve_operator_reconciles_total")

    def writes(self) -> int:
        """How often it has written anything but its Lease."""
        return self._counted("v4serve_operator_api_writes_total", 'kind="Lease"')

    def _counted(self, counter: str, but: str = "nothing") -> int:
        """A counter of the leader, over all its labels; 0 while there is no leader."""
        where = f"/api/v1/namespaces/{SYSTEM}/pods/{self.leader()}:8080/proxy/metrics"
        lines = self.cluster.kubectl("get", "--raw", where, check=False).splitlines()
        counts = [line.split()[-1] for line in lines if line.startswith(f"{counter}{{") and but not in line]
        return int(sum(map(float, counts)))

    def replace_operator(self) -> None:
        """Restart it, and wait until the new one has looked at the V4Deployments."""
        old = self.leader()
        self.restart_operator()
        self.cluster.wait(
            lambda: self.leader() not in ("", old) and self.looks() > 0, DEADLINE_SECONDS, "a new operator has looked"
        )

    def versions(self, name: str = NAME) -> dict[str, list[tuple[str, str]]]:
        """When the operator last changed the V4Deployment and each child; what controllers write does not count."""
        shown = "--show-managed-fields"
        items = self.get(CHILDREN, "--selector", f"v4serve.dev/deployment={name}", shown)["items"]
        return {
            f"{item['kind']}/{name_of(item)}": sorted(
                (entry["operation"], entry["time"])
                for entry in item["metadata"]["managedFields"]
                if entry["manager"] == MANAGER
            )
            for item in [*items, self.get("v4d", name, shown)]
        }

    def children(self, name: str) -> list[str]:
        """Names of everything that was made for a V4Deployment."""
        kinds = f"pod,replicaset,{CHILDREN}"
        return self.kubectl("get", kinds, "--selector", f"v4serve.dev/deployment={name}", "--output=name").split()

    # Objects of the namespace.

    def kubectl(self, *args: str, **more: Any) -> str:
        """kubectl in the namespace of the V4Deployment."""
        return self.cluster.kubectl("--namespace", NAMESPACE, *args, **more)

    def get(self, *args: str) -> Json:
        """What kubectl gets in that namespace."""
        return self.cluster.get("--namespace", NAMESPACE, *args)

    def pods(self, role: str, name: str = NAME) -> list[Json]:
        """Pods of a role, oldest first, those that end too."""
        return self.cluster.pods(NAMESPACE, f"v4serve.dev/deployment={name},v4serve.dev/role={role}")

    # V4Deployments.

    def apply(self, spec: Json, name: str = NAME) -> None:
        """Apply a V4Deployment."""
        self.kubectl("apply", "--filename=-", input=manifest(name, spec))

    def patch(self, spec: Json, name: str = NAME) -> None:
        """Merge into the spec."""
        self.kubectl("patch", "v4d", name, "--type=merge", "--patch", json.dumps({"spec": spec}))

    def v4d(self, name: str = NAME) -> Json:
        """The V4Deployment."""
        return self.get("v4d", name)

    def condition(self, kind: str, name: str = NAME) -> Json:
        """A condition about the spec as it is now; empty if there is none yet."""
        found = self.v4d(name)
        return next(
            (
                condition
                for condition in found.get("status", {}).get("conditions", ())
                if condition["type"] == kind and condition["observedGeneration"] == found["metadata"]["generation"]
            ),
            {},
        )

    def wait_for(self, kind: str, reason: str, name: str = NAME) -> str:
        """Until a condition has this reason; its message."""

        def there() -> str:
            condition = self.condition(kind, name)
            return str(condition["message"]) if condition.get("reason") == reason else ""

        self.cluster.wait(there, DEADLINE_SECONDS, f"{name} is {kind} by reason {reason}")
        return there()

    def settle(self, name: str = NAME) -> None:
        """Until all is as asked for; pods that are no longer wanted may still be ending."""
        self.wait_for("Progressing", "Complete", name)
        self.wait_for("Ready", "Serving", name)

    def revision(self) -> str:
        """The current one of the demo."""
        return str(self.v4d()["status"]["revision"])

    def pods_as_they_are(self) -> dict[str, int]:
        """Restarts of the containers of each router, and of each worker of the current revision, by the pod's uid."""
        current = self.revision()
        pods = [pod for pod in self.worker_pods() if pod["metadata"]["labels"]["v4serve.dev/revision"] == current]
        return {
            pod["metadata"]["uid"]: sum(status["restartCount"] for status in pod["status"]["containerStatuses"])
            for pod in [*pods, *self.pods("router")]
            if not is_leaving(pod)
        }

    def worker_pods(self, name: str = NAME) -> list[Json]:
        """Pods of both worker roles."""
        return [*self.pods("prefill", name), *self.pods("decode", name)]

    def key(self, name: str = NAME) -> str:
        """The API key that was made."""
        return base64.b64decode(self.kubectl("get", "secret", f"{name}-api-key", "-o", "jsonpath={.data.key}")).decode()

    @contextmanager
    def url(self, name: str = NAME) -> Iterator[str]:
        """The Service as this machine reaches it."""
        with self.cluster.connect(NAMESPACE, name, 80) as url:
            yield url

    def fleet(self, name: str = NAME) -> list[Json]:
        """What each router that is ready says of its workers."""
        proxied = "/api/v1/namespaces/{}/pods/{}:9100/proxy/fleet"
        routers = [pod for pod in self.pods("router", name) if is_ready(pod) and not is_leaving(pod)]
        return [
            json.loads(self.cluster.kubectl("get", "--raw", proxied.format(NAMESPACE, name_of(pod)))) for pod in routers
        ]

    def held(self, name: str = NAME) -> Json:
        """Loads of workers that still hold something for a stream, by address, as routers heard last."""
        kept = ("running", "waiting", "leases", "tails_used", "blocks_used")
        workers = (worker for fleet in self.fleet(name) for worker in fleet["workers"] if worker["up"])
        loads = {worker["address"]: worker["load"] for worker in workers}
        return {address: load for address, load in loads.items() if any(load[part] for part in kept)}

    def wait_until_nothing_is_held(self) -> None:
        """Leases, tails and blocks of every worker come back."""
        self.cluster.wait(lambda: not self.held(), 60, "workers hold nothing")


@contextmanager
def under_load(
    installed: Installed, *right: Answers, may_fail: Callable[[Stream], bool] = lambda stream: False
) -> Iterator[Load]:
    """Clients that stream from the demo meanwhile, and for a while after; then none of their streams was wrong.

    None failed either but those that `may_fail`; and nothing is left of them on any worker.
    """
    with installed.url() as url, Load(url, installed.key(), NAME, right) as load:
        installed.cluster.wait(lambda: load.flowing, STREAM_SECONDS, "all clients stream")
        yield load
        more_streams(installed, load)
    wrong, failed = load.wrong(), [stream for stream in load.failed() if not may_fail(stream)]
    assert not wrong, wrong[0]
    assert not failed, f"{len(failed)} of {len(load.streams)}, the first after {len(failed[0].ids)} tokens: {failed[0]}"
    installed.wait_until_nothing_is_held()
    print(f"{len(load.streams)} streams, {len(load.failed())} failed")


def more_streams(installed: Installed, load: Load) -> None:
    """Until as many streams as there are clients began after now and came to a good end."""
    now = time.monotonic()
    installed.cluster.wait(lambda: load.finished(now) >= load.clients, STREAM_SECONDS, "more streams have ended")


def manifest(name: str, spec: Mapping[str, Any]) -> str:
    """A V4Deployment as YAML."""
    parts = {"apiVersion": "v4serve.dev/v1alpha1", "kind": "V4Deployment", "metadata": {"name": name}, "spec": spec}
    return yaml.safe_dump(parts)


def example() -> Json:
    """The spec of examples/demo.yaml."""
    spec: Json = yaml.safe_load(DEMO.read_text())["spec"]
    return spec


def name_of(obj: Json) -> str:
    """Its name."""
    return str(obj["metadata"]["name"])


def is_leaving(obj: Json) -> bool:
    """Whether it is being deleted."""
    return "deletionTimestamp" in obj["metadata"]


def is_ready(pod: Json) -> bool:
    """Whether the pod is ready."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ()))


def timed(since: float) -> str:
    """Seconds since then, for output."""
    return f"{time.monotonic() - since:.1f} s"
