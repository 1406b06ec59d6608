"""Queue, caches, writes and status together bring about the desired state; without kopf."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from tests.kube.fake_server import FakeServer, status
from tests.operator.conftest import until
from v4_core.kubernetes import API_VERSION, DEPLOYMENT_LABEL, KIND, MANAGED_BY_LABEL, MANAGER, Json
from v4_kube.client import KubeClient
from v4_operator import runtime as module
from v4_operator.config import OperatorConfig
from v4_operator.desired import DesiredState, desired_state
from v4_operator.kube.discovery import Discovery
from v4_operator.manifests.settings import Settings
from v4_operator.metrics import REGISTRY
from v4_operator.observed.live import Observed
from v4_operator.runtime import Runtime
from v4_operator.spec.parse import SpecError, parse
from v4_operator.spec.v4deployment import V4Deployment
from v4_operator.state import history

PARENT = "/apis/v4serve.dev/v1alpha1/namespaces/n/v4deployments/d"
CHILD = "/api/v1/namespaces/n/configmaps/d"
EVENTS = "/api/v1/namespaces/n/events/"


class Decider:
    """Desires one ConfigMap with the replicas of decode, and records its arguments."""

    def __init__(self) -> None:
        self.seen: list[tuple[Json, Observed, Settings]] = []
        self.requeue: float | None = None
        self.extra: tuple[dict[str, Any], ...] = ()
        self.change: Callable[[dict[str, Any]], None] = lambda _: None

    def __call__(self, parent: Json, observed: Observed, settings: Settings) -> DesiredState:
        self.seen.append((parent, observed, settings))
        try:
            v4d = parse(parent)
        except SpecError:
            return desired_state(parent, observed, settings)
        wanted = {"d", *(extra["metadata"]["name"] for extra in self.extra)}
        stale = tuple(child for child in observed.children if child["metadata"]["name"] not in wanted)
        ready = bool(observed.children)
        body: dict[str, Any] = {
            "endpoint": v4d.served_name,
            "conditions": [
                {
                    "type": "Ready",
                    "status": str(ready),
                    "reason": "Serving" if ready else "Starting",
                    "message": "",
                    "lastTransitionTime": observed.now.isoformat(),
                }
            ],
        }
        self.change(body)
        return DesiredState((*self.extra, config_map(v4d)), stale, body, self.requeue)


def config_map(v4d: V4Deployment) -> dict[str, Any]:
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": v4d.name, "uid": v4d.uid, "controller": True}
    labels = {DEPLOYMENT_LABEL: v4d.name, MANAGED_BY_LABEL: MANAGER}
    metadata = {"namespace": v4d.namespace, "name": v4d.name, "labels": labels, "ownerReferences": [owner]}
    data = {"decode": str(v4d.spec.decode.replicas)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


class Operator:
    """The runtime and its server. `put` writes a V4Deployment and passes it to the runtime, as kopf would."""

    def __init__(self, server: FakeServer, api: KubeClient, config: OperatorConfig) -> None:
        self.server, self.decider = server, Decider()
        self.discovery = Discovery(api)
        self.failures: list[BaseException] = []
        self.runtime = Runtime(config, api, self.discovery, self.decider, self.failures.append)

    async def put(self, replicas: int = 1, **metadata: Any) -> None:
        known = self.server.objects.get(PARENT, {})
        self.runtime.on_event(False, await self.server.put(PARENT, known | parent(replicas, **metadata)))

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.server.objects[PARENT].get("status", {}))

    def condition(self, kind: str) -> dict[str, Any]:
        return next((c for c in self.status.get("conditions", ()) if c["type"] == kind), {})

    def events(self) -> list[tuple[str, str, str]]:
        found = [obj for path, obj in self.server.objects.items() if path.startswith(EVENTS)]
        return [(event["type"], event["reason"], event["involvedObject"]["name"]) for event in found]

    async def settled(self) -> None:
        """Waits until a further reconcile writes nothing."""
        while True:
            before = self.server.history[-1]
            self.decider.seen.clear()
            self.runtime._queue.add(self.runtime._parents.all()[0])
            await until(lambda: self.decider.seen)
            if self.server.history[-1] is before:
                return


def parent(replicas: int = 1, **metadata: Any) -> dict[str, Any]:
    spec = {"model": {"demo": {}}, "decode": {"replicas": replicas}}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"namespace": "n", "name": "d", "generation": 1, **metadata},
        "spec": spec,
    }


@pytest.fixture
async def operator(server: FakeServer, api: KubeClient, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Operator]:
    monkeypatch.setattr(module, "_GATHER_SECONDS", 0.0)
    config = OperatorConfig("worker:1", "router:1", all_namespaces=True, common_labels={"team": "x"})
    made = Operator(server, api, config)
    await made.discovery.refresh()
    made.runtime.start()
    yield made
    await made.runtime.close()
    assert made.failures == []


async def test_a_v4deployment_gets_its_desired_objects_and_status(operator: Operator) -> None:
    assert operator.runtime.not_ready().startswith("not listed yet: /api/v1/pods, /api/v1/configmaps, ")
    await operator.put(2)
    await until(lambda: operator.condition("Ready").get("status") == "True")
    assert operator.server.objects[CHILD]["data"] == {"decode": "2"}
    assert operator.status["endpoint"] == "d"
    assert operator.runtime.not_ready() == ""
    await until(lambda: len(operator.events()) == 2)
    assert operator.events() == [("Normal", "Starting", "d"), ("Normal", "Serving", "d")]
    settings = operator.decider.seen[-1][2]
    assert (settings.worker_image, settings.router_image, settings.common_labels) == (
        "worker:1",
        "router:1",
        {"team": "x"},
    )
    assert settings.server_version == (1, 20)
    assert ("policy/v1beta1", "PodDisruptionBudget") in settings.kinds


async def test_nothing_is_written_when_nothing_changes(operator: Operator) -> None:
    await operator.put()
    await until(lambda: operator.condition("Ready").get("status") == "True")
    await operator.settled()
    last, seen = operator.server.history[-1], len(operator.decider.seen)
    operator.decider.requeue = 0.0
    operator.runtime._queue.add(operator.runtime._parents.all()[0])
    await until(lambda: len(operator.decider.seen) > seen + 20)
    assert operator.server.history[-1] is last


async def test_changes_are_applied_and_drift_and_deletions_are_repaired(operator: Operator) -> None:
    await operator.put(1)
    await until(lambda: CHILD in operator.server.objects)
    await operator.put(3)
    await until(lambda: operator.server.objects[CHILD]["data"] == {"decode": "3"})
    await operator.settled()
    await operator.server.put(CHILD, {**operator.server.objects[CHILD], "data": {"decode": "9"}})
    await until(lambda: operator.server.objects[CHILD]["data"] == {"decode": "3"})
    await operator.server.remove(CHILD)
    await until(lambda: CHILD in operator.server.objects)


async def test_children_that_are_no_longer_desired_are_deleted(operator: Operator) -> None:
    extra = {**config_map(_v4d("uid-x")), "metadata": {**config_map(_v4d("uid-x"))["metadata"], "name": "extra"}}
    await operator.put()
    await until(lambda: operator.decider.seen)
    uid = operator.server.objects[PARENT]["metadata"]["uid"]
    extra["metadata"]["ownerReferences"][0]["uid"] = uid
    operator.decider.extra = (extra,)
    await operator.put(2)
    await until(lambda: CHILD.replace("/d", "/extra") in operator.server.objects)
    operator.decider.extra = ()
    await operator.put(3)
    await until(lambda: CHILD.replace("/d", "/extra") not in operator.server.objects)


async def test_a_v4deployment_that_is_being_deleted_is_left_alone(operator: Operator) -> None:
    await operator.put()
    await until(lambda: CHILD in operator.server.objects)
    await operator.settled()
    await operator.put(1, deletionTimestamp="2026-01-01T00:00:00Z")
    seen = len(operator.decider.seen)
    await operator.server.remove(CHILD)
    last = operator.server.history[-1]
    await until(lambda: operator.runtime._children.get("ConfigMap", "n", "d") is None)
    await asyncio.sleep(0)
    operator.runtime.on_event(True, operator.server.objects[PARENT])
    await operator.runtime.close()
    assert len(operator.decider.seen) == seen
    assert operator.server.history[-1] is last


async def test_a_deletion_in_the_middle_stops_the_writes(operator: Operator) -> None:
    def delete(_: dict[str, Any]) -> None:
        gone = parent(1, deletionTimestamp="2026-01-01T00:00:00Z", resourceVersion="999")
        gone["metadata"] = {**operator.server.objects[PARENT]["metadata"], **gone["metadata"]}
        operator.runtime.on_event(False, gone)

    operator.decider.change = delete
    await operator.put()
    await until(lambda: operator.decider.seen)
    await operator.runtime.close()
    assert CHILD not in operator.server.objects
    assert operator.status == {}


async def test_a_spec_that_cannot_be_parsed_is_reported_and_children_stay(operator: Operator) -> None:
    await operator.put()
    await until(lambda: operator.condition("Ready").get("status") == "True")
    broken = parent(1, generation=2)
    broken["spec"]["decode"]["replicas"] = "many"
    operator.runtime.on_event(False, await operator.server.put(PARENT, operator.server.objects[PARENT] | broken))
    await until(lambda: operator.condition("Degraded").get("status") == "True")
    assert operator.condition("Ready")["reason"] == "InvalidSpec"
    assert "decode.replicas must be a whole number" in operator.condition("Degraded")["message"]
    assert operator.status["observedGeneration"] == 2
    assert operator.status["endpoint"] == "d"
    assert CHILD in operator.server.objects
    await until(lambda: ("Warning", "InvalidSpec", "d") in operator.events())


async def test_a_name_that_is_taken_is_reported_until_it_is_free(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    await operator.server.put(
        CHILD, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n", "name": "d"}}
    )
    await operator.put()
    await until(lambda: operator.condition("Degraded").get("reason") == "NameTaken")
    assert "data" not in operator.server.objects[CHILD]
    assert operator.condition("Ready")["status"] == "False"
    await until(lambda: "n/d: ConfigMap d exists" in caplog.text)
    await operator.server.remove(CHILD)
    await until(lambda: operator.condition("Ready").get("status") == "True")
    assert operator.condition("Degraded") == {}


async def test_errors_of_the_server_are_retried(operator: Operator) -> None:
    operator.server.fault = lambda r: status(500, "InternalError", "etcd") if r.method == "PATCH" else None
    await operator.put()
    await until(lambda: operator.server.count("PATCH") > 2)
    operator.server.fault = lambda _: None
    await until(lambda: operator.condition("Ready").get("status") == "True")
    assert operator.condition("Degraded") == {}, "nothing that anybody must act on"


async def test_a_permanent_refusal_is_in_the_status_until_it_is_corrected(operator: Operator) -> None:
    words = "failed to create typed patch object (n/d; v1, Kind=ConfigMap): .data.decode: expected string"
    operator.server.fault = lambda r: status(500, "", words) if r.path == CHILD and r.method == "PATCH" else None
    await operator.put()
    await until(lambda: operator.condition("Degraded").get("reason") == "ApplyFailed")
    assert operator.condition("Degraded")["message"] == f"apply ConfigMap d: {words}"
    operator.server.fault = lambda _: None
    await operator.put(2)
    await until(lambda: operator.condition("Ready").get("status") == "True")
    assert operator.condition("Degraded") == {}


async def test_errors_that_last_are_reported(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_PATIENCE", timedelta(seconds=1))
    operator.server.fault = lambda r: status(500, "", "etcd") if r.path == CHILD and r.method == "PATCH" else None
    await operator.put()
    await until(lambda: operator.status)
    assert operator.condition("Degraded") == {}
    await until(lambda: operator.condition("Degraded").get("reason") == "ApplyFailed")
    assert operator.condition("Degraded")["message"] == "apply ConfigMap d: etcd (retried for over a minute)"


async def test_missing_objects_of_pods_that_do_not_start_are_found(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("there", "secret-keys", "forbidden")
    pod = config_map(_v4d("")) | {"kind": "Pod"}
    pod["metadata"] |= {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": []}
    pod["spec"] = {"volumes": [{"name": name, "secret": {"secretName": name}} for name in names]}
    creating = {"name": "c", "ready": False, "state": {"waiting": {"reason": "ContainerCreating"}}}
    pod["status"] = {"startTime": "2026-01-01T00:00:00Z", "containerStatuses": [creating]}
    secrets = "/api/v1/namespaces/n/secrets"
    await operator.server.put(f"{secrets}/there", {"metadata": {"namespace": "n", "name": "there"}})
    await operator.server.put("/api/v1/namespaces/n/pods/p", pod)
    accepted = set()

    def fault(request: web.Request) -> web.Response | None:
        if request.path.startswith(f"{secrets}/"):
            accepted.add(request.headers["Accept"])
        return status(403, "Forbidden", "no") if request.path.endswith("/forbidden") else None

    operator.server.fault = fault
    await operator.put()
    # The pod is not desired and is deleted at once, so that a later reconcile misses nothing.
    await until(lambda: any(observed.absent for _, observed, _ in operator.decider.seen))
    found = [observed.absent for _, observed, _ in operator.decider.seen if observed.absent]
    assert set(found) == {frozenset({("Secret", "secret-keys")})}
    assert accepted == {"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}, "no content of Secrets"
    assert "n/d: cannot tell whether Secret forbidden exists: GET" in caplog.text


async def test_an_event_that_cannot_be_created_does_not_stop_a_reconcile(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    operator.server.fault = lambda r: status(403, "Forbidden", "no") if r.path.endswith("/events") else None
    await operator.put()
    await until(lambda: operator.condition("Ready").get("status") == "True")
    await until(lambda: "an Event could not be created" in caplog.text)


async def test_a_v4deployment_whose_deletion_was_missed_is_dropped(operator: Operator) -> None:
    await operator.put()
    await until(lambda: operator.condition("Ready").get("status") == "True")
    await operator.settled()
    await operator.server.remove(PARENT)
    await operator.runtime._drop_deleted()
    assert operator.runtime._parents.all() == []


async def test_a_status_write_after_a_deletion_is_not_an_error(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    obj = await operator.server.put(PARENT, parent())
    await operator.server.remove(PARENT)
    operator.runtime.on_event(False, obj)
    await until(lambda: operator.server.count(f"PATCH {PARENT}/status"))
    await until(lambda: operator.runtime._parents.all() == [])
    assert caplog.text == ""


def figures(name: str) -> dict[tuple[str, ...], float]:
    """Samples of a metric by the values of their labels."""
    found = [sample for family in REGISTRY.collect() for sample in family.samples if sample.name == name]
    return {tuple(sample.labels.values()): sample.value for sample in found}


async def test_metrics_of_a_v4deployment_exist_until_it_is_deleted(operator: Operator) -> None:
    await operator.put()
    await until(lambda: operator.condition("Ready").get("status") == "True")
    ready = {("n", "d", "Ready", "True", "Serving"): 1.0}
    await until(lambda: figures("v4serve_deployment_condition") == ready)
    assert figures("v4serve_deployment_revisions") == {("n", "d"): 0.0}
    gone = operator.server.objects[PARENT]
    await operator.server.remove(PARENT)
    operator.runtime.on_event(True, gone)
    for name in ("condition", "workers", "revisions"):
        assert figures(f"v4serve_deployment_{name}") == {}


async def test_times_to_ready_are_measured(operator: Operator) -> None:
    before = figures("v4serve_operator_time_to_ready_seconds_count")[()]
    await operator.put()
    await until(lambda: operator.condition("Ready").get("status") == "True")
    await operator.settled()
    assert figures("v4serve_operator_time_to_ready_seconds_count")[()] == before + 1


async def test_errors_are_counted_by_kind(operator: Operator) -> None:
    def counted(kind: str) -> float:
        return figures("v4serve_operator_errors_total")[(kind,)]

    before = {kind: counted(kind) for kind in ("api", "event", "name_taken")}
    operator.server.fault = lambda r: status(403, "Forbidden", "no") if r.path.endswith("/events") else None
    await operator.server.put(
        CHILD, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n", "name": "d"}}
    )
    await operator.put()
    await until(lambda: counted("name_taken") > before["name_taken"])
    await until(lambda: counted("event") > before["event"])
    assert counted("api") == before["api"]
    operator.server.fault = lambda r: status(500, "InternalError", "etcd") if r.method == "PATCH" else None
    await operator.server.remove(CHILD)
    await until(lambda: counted("api") > before["api"])


async def test_everything_is_reconciled_periodically(server: FakeServer, api: KubeClient) -> None:
    config = OperatorConfig("worker:1", "router:1", namespaces=("n", "m"), resync_seconds=1.0)
    operator = Operator(server, api, config)
    await operator.discovery.refresh()
    operator.runtime.start()
    await operator.put()
    await until(lambda: operator.condition("Ready").get("status") == "True")
    seen = len(operator.decider.seen)
    await until(lambda: len(operator.decider.seen) > seen + 1)
    assert server.count("GET /apis/v4serve.dev/v1alpha1/namespaces/m/v4deployments")
    await operator.runtime.close()


async def test_a_server_that_was_upgraded_is_noticed(
    server: FakeServer, api: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DETECT_SECONDS", 0.05)
    operator = Operator(server, api, OperatorConfig("worker:1", "router:1", all_namespaces=True))
    await operator.discovery.refresh()
    operator.runtime.start()
    await operator.put()
    await until(lambda: operator.condition("Ready").get("status") == "True")
    server.fault = lambda r: status(503, "down") if r.path == "/version" else None
    asked = server.count("GET /version")
    await until(lambda: server.count("GET /version") > asked + 1)
    server.kinds["policy/v1"] = server.kinds.pop("policy/v1beta1")
    server.fault = lambda _: None
    await until(lambda: ("policy/v1", "PodDisruptionBudget") in operator.decider.seen[-1][2].kinds)
    assert server.count("GET /apis/policy/v1/poddisruptionbudgets")
    await operator.runtime.close()
    assert operator.failures == []


async def test_a_part_that_ends_by_itself_is_reported(server: FakeServer, api: KubeClient) -> None:
    operator = Operator(server, api, OperatorConfig("worker:1", "router:1", all_namespaces=True))
    await operator.discovery.refresh()
    operator.runtime._children.replace = None  # type: ignore[assignment, method-assign]
    operator.runtime.start()
    await until(lambda: operator.failures)
    assert isinstance(operator.failures[0], TypeError)
    await operator.runtime.close()


def _v4d(uid: str) -> V4Deployment:
    from v4_operator.spec.v4deployment import Spec

    return V4Deployment("d", "n", uid, 1, False, Spec())
