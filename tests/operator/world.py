"""A small cluster in memory: takes the operator's writes, and acts as Deployment controller, scheduler and kubelet.

Time passes in ticks of a second. A revision's pods can be told never to start, or to find no node.
"""

import copy
import itertools
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.operator.server_side_apply import applied
from v4_core.kubernetes import API_VERSION, KIND, REVISION_LABEL, ROLE_LABEL
from v4_operator.desired import DesiredState, desired_state
from v4_operator.manifests.settings import Settings
from v4_operator.observed.compare import controller, create_only, needs_write, stamped, upkept
from v4_operator.observed.live import Observed
from v4_operator.spec.parse import parse
from v4_operator.spec.v4deployment import V4Deployment

Obj = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = Settings(
    worker_image="worker:1",
    router_image="router:1",
    operator_namespace="v4serve",
    operator_labels={"app": "operator"},
    server_version=(1, 36),
    kinds=frozenset({("policy/v1", "PodDisruptionBudget")}),
)


def parent(spec: Mapping[str, Any] | None = None, name: str = "demo", **metadata: Any) -> Obj:
    """A V4Deployment as the API server returns it."""
    identity = {"name": name, "namespace": "models", "uid": f"uid-{name}", "generation": 1}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": identity | metadata,
        "spec": {"model": {"demo": {}}, **(spec or {})},
    }


def v4deployment(spec: Mapping[str, Any] | None = None, name: str = "demo") -> V4Deployment:
    """Parsed from a manifest, so that it has the schema's defaults."""
    return parse(parent(spec, name))


def text(moment: datetime) -> str:
    """A time in the format of the API server."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> Obj:
    """A deep merge of two mappings."""
    result: Obj = copy.deepcopy(dict(base))
    for key, value in change.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return result


class World:
    """One namespace with one V4Deployment."""

    def __init__(self, spec: Mapping[str, Any] | None = None, settings: Settings = SETTINGS) -> None:
        self.settings = settings
        self.spec: Obj = {"model": {"demo": {}}, **copy.deepcopy(dict(spec or {}))}
        self.generation = 1
        self.uid = "uid-demo"
        self.now = START
        self.objects: dict[tuple[str, str], Obj] = {}
        self.status: Obj = {}
        self.start_seconds = 3
        self.drain_seconds = 4
        self.room: int | None = None  # number of worker pods that find a node; None = all
        self.broken: set[str] = set()  # revisions whose processes crash at once
        self.unprobed: set[str] = set()  # revisions whose probes fail
        self.routers_answer = True
        self.router_error = ""  # why routers cannot read pods
        self.keys_since: list[str] = []  # when each router read its API keys, in order; empty = no router has keys
        self.silent_routers = 0  # number of running routers that do not answer in time
        self.slots: dict[str, int] = {}  # block slots that workers report, by role
        self.transfers = (0, 0.0)  # bytes and seconds of the transfers that each router reports
        self.writes = 0
        self._numbers = itertools.count()
        self._applied: dict[tuple[str, str], Obj] = {}  # the last object written, by kind and name

    @property
    def parent(self) -> Obj:
        """The V4Deployment as it is now."""
        return parent(self.spec, generation=self.generation, uid=self.uid)

    @property
    def v4d(self) -> V4Deployment:
        """The V4Deployment, parsed."""
        return parse(self.parent)

    def change(self, change: Mapping[str, Any]) -> None:
        """Edits the spec."""
        self.spec = merged(self.spec, change)
        self.generation += 1

    def observed(self) -> Observed:
        """The observed state."""
        return Observed(self.now, list(self.objects.values()), self.fleets(), self.status)

    def desired_state(self) -> DesiredState:
        """The desired state, which is not written."""
        return desired_state(self.parent, self.observed(), self.settings)

    def reconcile(self) -> DesiredState:
        """Writes objects that differ, deletes those that are not desired, and stores the status."""
        made = self.desired_state()
        for obj in made.objects:
            self._write(obj)
        for child in made.prune:
            self._delete(child)
        assert not any(_empty_texts(made.status)), "server 1.20 refuses a new part of a status with an empty text in it"
        if made.status != self.status:
            self.status = dict(made.status)
            self.writes += 1
        return made

    def tick(self, seconds: int = 1) -> None:
        """Lets the controllers and the kubelet act once for each second."""
        for _ in range(seconds):
            self.now += timedelta(seconds=1)
            for deployment in self.of("Deployment"):
                self._control(deployment)
            for pod in self.of("Pod"):
                self._run(pod)
            for deployment in self.of("Deployment"):
                self._count(deployment)

    def settle(self, ticks: int = 120) -> DesiredState:
        """Reconciles and ticks until nothing changes."""
        for _ in range(ticks):
            before = self.writes
            made = self.reconcile()
            self.tick()
            if self.writes == before and self.condition("Progressing")["status"] == "False":
                return made
        raise AssertionError(f"still moving: {self.status}")

    def of(self, kind: str) -> list[Obj]:
        """Objects of a kind."""
        return [obj for (each, _), obj in self.objects.items() if each == kind]

    def get(self, kind: str, name: str) -> Obj:
        """One object."""
        return self.objects[kind, name]

    def condition(self, kind: str) -> Obj:
        """A condition of the status."""
        return next(c for c in self.status["conditions"] if c["type"] == kind)

    def sizes(self) -> dict[str, int]:
        """The replicas in the spec of each worker Deployment."""
        return {d["metadata"]["name"]: d["spec"]["replicas"] for d in self.of("Deployment") if _revision(d)}

    def revisions(self) -> list[str]:
        """The revisions of worker Deployments, the oldest first."""
        return list(dict.fromkeys(_revision(d) for d in self.of("Deployment") if _revision(d)))

    def ready_pairs(self, revision: str) -> int:
        """The number of pairs of ready workers that are not being deleted."""
        counts = dict.fromkeys(("prefill", "decode"), 0)
        for pod in self.pods(revision):
            if _is_ready(pod) and not pod["metadata"].get("deletionTimestamp"):
                role = pod["metadata"]["labels"][ROLE_LABEL]
                for worker in ("prefill", "decode") if role == "pair" else (role,):
                    counts[worker] += 1
        return min(counts.values())

    def pods(self, revision: str = "", role: str = "") -> list[Obj]:
        """The pods of workers, including draining ones; with role router, those of the router."""
        return [
            pod
            for pod in self.of("Pod")
            if (revision in ("", _revision(pod)) and (_revision(pod) or role == "router"))
            and role in ("", pod["metadata"]["labels"][ROLE_LABEL])
        ]

    def probed(self, revision: str) -> bool:
        """Whether a probe of this revision succeeds."""
        return self.ready_pairs(revision) > 0 and revision not in self.unprobed

    def fleets(self) -> list[Obj]:
        """The answer of each running router."""
        if not self.routers_answer:
            return []
        running = [pod for pod in self.pods(role="router") if pod["status"]["phase"] == "Running"]
        times = itertools.chain(self.keys_since, itertools.repeat(""))
        return [self._fleet(since) for _, since in zip(running[self.silent_routers :], times, strict=False)]

    def kill(self, pod: Obj) -> None:
        """Removes a pod without a grace period, as the failure of its node does."""
        self.objects.pop(("Pod", pod["metadata"]["name"]), None)

    def finish_job(self, failed: str = "") -> None:
        """Ends the Job that downloads the model."""
        (job,) = self.of("Job")
        kind = {"type": "Failed", "message": failed} if failed else {"type": "Complete"}
        job["status"] = {"conditions": [{**kind, "status": "True"}]}

    def _fleet(self, keys_since: str) -> Obj:
        revisions = dict.fromkeys(_revision(pod) for pod in self.pods())
        return {
            "router": {"ready": True, "error": self.router_error, "keys_since": keys_since},
            "workers": [
                {
                    "address": pod["metadata"]["name"],
                    "role": pod["metadata"]["labels"][ROLE_LABEL],
                    "revision": _revision(pod),
                    "up": True,
                    "load": {"slots_total": self.slots.get(pod["metadata"]["labels"][ROLE_LABEL], 0)},
                }
                for pod in self.pods()
                if _is_ready(pod)
            ],
            "revisions": [
                {
                    "revision": revision,
                    "probed": self.probed(revision),
                    "error": "transfer refused" if revision in self.unprobed else "",
                    "transport": "grpc" if self.probed(revision) else "",
                    "transferred_bytes": self.transfers[0],
                    "transfer_seconds": self.transfers[1],
                }
                for revision in revisions
            ],
        }

    def _write(self, desired: Obj) -> None:
        key = desired["kind"], desired["metadata"]["name"]
        live = self.objects.get(key)
        if live is None:
            self.writes += 1
            obj = self._applied[key] = stamped(desired)
            obj = self.objects[key] = copy.deepcopy(obj)
            obj["metadata"] |= {"creationTimestamp": text(self.now), "generation": 1}
            obj["metadata"]["uid"] = f"uid-{next(self._numbers)}"
        elif controller(desired) is not None and needs_write(upkept(desired), live):
            self.writes += 1
            new = applied(live, {} if create_only(desired) else self._applied[key], upkept(desired))
            new["metadata"]["generation"] += live.get("spec") != new.get("spec")
            assert not live.get("immutable") or live["data"] == new["data"]
            self.objects[key], self._applied[key] = new, upkept(desired)

    def _delete(self, obj: Mapping[str, Any]) -> None:
        self.writes += 1
        name = obj["metadata"]["name"]
        del self.objects[obj["kind"], name]
        for pod in self.of("Pod"):
            if pod["metadata"]["ownerReferences"][0]["name"] == name:
                self._drain(pod)

    def _control(self, deployment: Obj) -> None:
        """Creates and deletes pods as the Deployment controller does."""
        spec, template = deployment["spec"], deployment["spec"]["template"]
        pods = [p for p in self._pods_of(deployment) if not p["metadata"].get("deletionTimestamp")]
        old = [pod for pod in pods if pod["template"] != template]
        surge = spec["strategy"]["rollingUpdate"]["maxSurge"] if old else 0
        least = spec["replicas"] - spec["strategy"]["rollingUpdate"]["maxUnavailable"]
        for pod in sorted(old, key=_is_ready):
            if not _is_ready(pod) or sum(map(_is_ready, pods)) > least:
                self._drain(pod)
                pods.remove(pod)
        for pod in sorted(pods, key=lambda pod: (_is_ready(pod), pod["template"] == template)):
            if len(pods) > spec["replicas"] + surge:
                self._drain(pod)
                pods.remove(pod)
        for _ in range(spec["replicas"] + surge - len(pods)):
            if len([pod for pod in pods if pod["template"] == template]) >= spec["replicas"]:
                break
            pods.append(self._make_pod(deployment))

    def _make_pod(self, deployment: Obj) -> Obj:
        template = copy.deepcopy(deployment["spec"]["template"])
        name = f"{deployment['metadata']['name']}-{next(self._numbers)}"
        pod: Obj = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **template["metadata"],
                "name": name,
                "namespace": "models",
                "creationTimestamp": text(self.now),
                "ownerReferences": [{"name": deployment["metadata"]["name"], "controller": True, "uid": "replicaset"}],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending", "conditions": []},
            "template": copy.deepcopy(template),
            "node": False,
        }
        self.objects["Pod", name] = pod
        return pod

    def _drain(self, pod: Obj) -> None:
        pod["metadata"].setdefault("deletionTimestamp", text(self.now + timedelta(seconds=self.drain_seconds)))

    def _run(self, pod: Obj) -> None:
        """Acts as scheduler and kubelet for one second."""
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp", "9") <= text(self.now):
            self.kill(pod)
            return
        taken = sum(other["node"] for other in self.pods())
        if not pod["node"] and _revision(pod) and self.room is not None and taken >= self.room:
            message = "0/1 nodes are available: 1 Insufficient cpu."
            self._set(pod, "PodScheduled", False, reason="Unschedulable", message=message)
            return
        pod["node"] = True
        self._set(pod, "PodScheduled", True)
        pod["status"]["phase"] = "Running"
        revision = _revision(pod)
        if revision in self.broken:
            waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
            ended = {"terminated": {"exitCode": 2, "reason": "Error", "message": "no such checkpoint"}}
            pod["status"]["containerStatuses"] = [
                {"name": "prefill", "ready": False, "state": waiting, "lastState": ended}
            ]
            self._set(pod, "Ready", False)
            return
        pod["status"].pop("containerStatuses", None)
        if revision:
            age = self.now - datetime.fromisoformat(metadata["creationTimestamp"])
            self._set(pod, "Ready", age >= timedelta(seconds=self.start_seconds))
        else:
            self._set(pod, "Ready", any(self.probed(each) for each in self.revisions()))

    def _set(self, pod: Obj, kind: str, holds: bool, **more: str) -> None:
        conditions = pod["status"]["conditions"]
        old = next((condition for condition in conditions if condition["type"] == kind), None)
        status = "True" if holds else "False"
        since = old["lastTransitionTime"] if old and old["status"] == status else text(self.now)
        if old:
            conditions.remove(old)
        conditions.append({"type": kind, "status": status, "lastTransitionTime": since, **more})

    def _count(self, deployment: Obj) -> None:
        pods = [pod for pod in self._pods_of(deployment) if not pod["metadata"].get("deletionTimestamp")]
        updated = [pod for pod in pods if pod["template"] == deployment["spec"]["template"]]
        size, status = deployment["spec"]["replicas"], deployment.setdefault("status", {})
        complete = len(updated) == size == len(pods) and all(map(_is_ready, pods))
        reason = "NewReplicaSetAvailable"
        known = [c["reason"] for c in status.get("conditions", ()) if c["type"] == "Progressing"]
        if not complete and (reason not in known or len(updated) != len(pods)):
            reason = "ReplicaSetUpdated"
        status |= {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": len(pods),
            "updatedReplicas": len(updated),
            "readyReplicas": sum(map(_is_ready, pods)),
            "conditions": [{"type": "Progressing", "status": "True", "reason": reason}],
        }

    def _pods_of(self, deployment: Obj) -> list[Obj]:
        name = deployment["metadata"]["name"]
        return [pod for pod in self.of("Pod") if pod["metadata"]["ownerReferences"][0]["name"] == name]


def _empty_texts(value: Any) -> Iterator[bool]:
    """Yields True for each empty text in `value`."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _empty_texts(part)
    elif value == "":
        yield True


def _revision(obj: Obj) -> str:
    return str(obj["metadata"]["labels"].get(REVISION_LABEL, ""))


def _is_ready(pod: Obj) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"]["conditions"])
