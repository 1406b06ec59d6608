"""Status: the truth, in words that help, and no write without a reason."""

from datetime import timedelta
from typing import Any

import pytest

from tests.operator.world import START, Obj, World, text
from v4_operator.observed.fleet_view import FleetView
from v4_operator.observed.needs import Need
from v4_operator.observed.troubles import pod_troubles, unmet
from v4_operator.spec.capacity import planned
from v4_operator.state.conditions import Condition, joined, written


def verdict(world: World, kind: str) -> tuple[str, str]:
    found = world.condition(kind)
    return found["status"], found["reason"]


def test_ready_needs_a_probe_and_not_just_pods() -> None:
    world = World()
    revision = world.reconcile().status["revision"]
    world.unprobed.add(revision)
    for _ in range(8):
        world.tick()
        world.reconcile()
    assert world.status["decode"]["summary"] == "1/1"
    assert verdict(world, "Ready") == ("False", "NotProbed")
    assert verdict(world, "Degraded") == ("False", "AsExpected"), "routers may still be on their way"
    world.tick(10)
    world.reconcile()
    assert verdict(world, "Degraded") == ("True", "ProbeFailed")
    assert "transfer refused" in world.condition("Ready")["message"]
    world.unprobed.clear()
    world.settle()
    assert verdict(world, "Ready") == ("True", "Serving")
    assert verdict(world, "Degraded") == ("False", "AsExpected")


def test_old_pods_do_not_count_during_a_change() -> None:
    world = World({"decode": {"replicas": 2}})
    world.settle()
    world.change({"model": {"revision": "b"}})
    world.reconcile()
    decode = world.status["decode"]
    assert (decode["ready"], decode["updated"], decode["replicas"]) == (0, 0, 2)
    assert verdict(world, "Ready")[0] == "False"


def test_a_pod_change_counts_pods_of_the_new_template_only() -> None:
    world = World({"decode": {"replicas": 2}})
    world.settle()
    world.change({"decode": {"resources": {"requests": {"cpu": "2"}}}})
    world.reconcile()
    assert (world.status["decode"]["updated"], world.status["prefill"]["updated"]) == (0, 1)
    assert verdict(world, "Progressing") == ("True", "Updating")
    assert verdict(world, "Ready")[0] == "True", "the revision serves on"
    world.settle()
    assert world.status["decode"]["updated"] == 2


def test_scaled_to_zero_is_no_fault() -> None:
    world = World({"prefill": {"replicas": 0}})
    world.settle()
    assert verdict(world, "Ready") == ("False", "ScaledToZero")
    assert "prefill" in world.condition("Ready")["message"]
    assert verdict(world, "Progressing") == ("False", "Complete")
    assert verdict(world, "Degraded")[0] == "False"


def test_routers_that_cannot_be_asked_are_believed_by_their_readiness() -> None:
    world = World()
    world.routers_answer = False
    world.settle()
    assert verdict(world, "Ready") == ("True", "Serving")
    world.change({"model": {"revision": "b"}})
    for _ in range(10):
        world.reconcile()
        world.tick()
    assert verdict(world, "Ready") == ("False", "NotProbed"), "it may be the old revision that is meant"
    assert len(world.revisions()) == 2


def test_a_router_that_never_gets_ready_is_late() -> None:
    world = World({"rollout": {"progressDeadlineSeconds": 30, "drainSeconds": 1}})
    revision = world.reconcile().status["revision"]
    world.unprobed.add(revision)
    for _ in range(50):
        world.tick()
        world.reconcile()
    assert verdict(world, "Progressing") == ("False", "ProgressDeadlineExceeded")


def test_a_crashing_worker_speaks_for_itself() -> None:
    world = World()
    world.broken.add(world.reconcile().status["revision"])
    world.tick()
    world.reconcile()
    assert verdict(world, "Degraded") == ("True", "Crashing")
    assert "exit code 2: no such checkpoint" in world.condition("Degraded")["message"]


def test_capacity_as_planned_and_as_reported() -> None:
    world = World({"decode": {"replicas": 2}})
    plan = planned(world.v4d, "decode")
    assert plan is not None
    world.slots = {"prefill": plan.slots, "decode": plan.slots}
    world.settle()
    assert world.status["capacity"] == {
        "plannedTokens": 2 * plan.tokens,
        "plannedSlotsPerWorker": plan.slots,
        "reportedTokens": 2 * plan.tokens,
        "reportedSlotsPerWorker": plan.slots,
    }
    world.routers_answer = False
    world.reconcile()
    assert world.status["capacity"]["reportedTokens"] == 2 * plan.tokens, "as it was known last"


def test_a_router_that_a_quota_forbids_is_late_too() -> None:
    world = World({"router": {"replicas": 2}, "rollout": {"progressDeadlineSeconds": 30, "drainSeconds": 1}})
    world.settle()
    router = world.get("Deployment", "demo-router")
    refusal = {"type": "ReplicaFailure", "status": "True", "message": "quota", "lastTransitionTime": text(world.now)}
    router["status"] |= {"readyReplicas": 1, "replicas": 1, "updatedReplicas": 1, "conditions": [refusal]}
    world.kill(world.pods(role="router")[0])
    world.reconcile()
    assert verdict(world, "Progressing")[0] == "True"
    world.now += timedelta(seconds=31)
    world.reconcile()
    assert verdict(world, "Progressing") == ("False", "ProgressDeadlineExceeded")
    assert verdict(world, "Degraded") == ("True", "PodsRefused")
    assert verdict(world, "Ready")[0] == "True", "the other router serves"


@pytest.mark.parametrize(("share", "mismatch"), [(0.96, False), (0.94, True), (1.04, False), (1.06, True)])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_capacity_that_differs_is_told(role: str, share: float, mismatch: bool) -> None:
    world = World()
    plan = planned(world.v4d, "decode")
    assert plan is not None
    world.slots = {"prefill": plan.slots, "decode": plan.slots, role: int(plan.slots * share)}
    world.settle()
    world.reconcile()
    assert verdict(world, "Degraded") == (("True", "CapacityMismatch") if mismatch else ("False", "AsExpected"))


def test_rates_are_written_when_they_change_and_not_when_they_flicker() -> None:
    world = World()
    world.settle()
    seen = []
    for measured in (123_456_789, 130_000_000, 147_000_000, 160_000_000, 0):
        world.transfers = (measured, 1.0)
        world.reconcile()
        seen.append(world.status["transport"]["bytesPerSecond"])
    assert seen == [120_000_000, 120_000_000, 150_000_000, 150_000_000, 150_000_000]
    assert "different pods" in world.status["transport"]["reason"]


def test_times_of_transition_change_with_status_alone() -> None:
    def at(seconds: int, holds: bool, reason: str, before: list[Any]) -> Any:
        now = START + timedelta(seconds=seconds)
        return written([Condition("Ready", holds, reason, "m" * 1000)], before, 1, now)

    first = at(0, False, "A", [])
    second = at(1, False, "B", first)
    third = at(2, True, "B", second)
    times = [conditions[0]["lastTransitionTime"] for conditions in (first, second, third)]
    assert times == ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-01T00:00:02Z"]
    assert len(first[0]["message"]) <= 600


@pytest.mark.parametrize(
    ("messages", "lengths"),
    [
        (["a" * 10, "b" * 20], [10, 20]),
        (["a" * 700], [600]),
        (["a" * 299, "b" * 299], [299, 299]),
        (["a" * 299, "b" * 300], [299, 299]),
        (["a" * 500, "b" * 500, "c" * 96], [250, 250, 96]),
        (["a" * 50, "b" * 1000, "c" * 100], [50, 446, 100]),
    ],
)
def test_a_long_message_hides_none_behind_it(messages: list[str], lengths: list[int]) -> None:
    parts = joined(messages).split("; ")
    assert [len(part) for part in parts] == lengths
    for part, message in zip(parts, messages, strict=True):
        assert part == message or (part.endswith("…") and message.startswith(part[:-1]))


def test_every_router_must_have_probed_before_the_old_revision_goes() -> None:
    def answer(probed: bool) -> Obj:
        return {"revisions": [{"revision": "a", "probed": probed}]}

    assert FleetView([answer(True), answer(True)]).served_by_all("a")
    assert not FleetView([answer(True), answer(False)]).served_by_all("a")
    assert FleetView([answer(True), answer(False)]).served("a")
    assert not FleetView([answer(True), {"revisions": []}]).served_by_all("a")
    assert not FleetView([]).served_by_all("a")


def container(state: Obj, last: Obj | None = None) -> Obj:
    return {"containerStatuses": [{"name": "decode", "ready": False, "state": state, "lastState": last or {}}]}


def waiting(reason: str, message: str = "", last: Obj | None = None) -> Obj:
    return container({"waiting": {"reason": reason, "message": message}}, last)


def unscheduled(message: str) -> Obj:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}


def init(state: Obj, last: Obj | None = None) -> Obj:
    """A pod whose first init container is in this state; kubelet says of all behind it that they wait for it."""
    behind = {"ready": False, "state": {"waiting": {"reason": "PodInitializing"}}}
    first = {"name": "istio-init", "ready": False, "state": state, "lastState": last or {}}
    return {
        "initContainerStatuses": [first, {"name": "vault", **behind}],
        "containerStatuses": [{"name": "decode", **behind}],
        "startTime": text(START),
    }


def sidecar(state: Obj, last: Obj | None = None) -> Obj:
    worker = {"name": "decode", "ready": True, "state": {"running": {}}, "lastState": {}}
    return {"containerStatuses": [worker, {"name": "proxy", "ready": False, "state": state, "lastState": last or {}}]}


KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
FAILED = {"terminated": {"exitCode": 2, "message": "bad\nflag"}}
CREATING = {**waiting("ContainerCreating"), "startTime": text(START)}
TROUBLES: list[tuple[Obj, int, str, str]] = [
    (unscheduled('claim "x" not found'), 60, "Unschedulable", 'claim "x" not found'),
    (unscheduled("waits for a volume"), 3, "", ""),
    (waiting("ImagePullBackOff", "Back-off pulling x"), 5, "ImagePullFailed", "pulling x"),
    (waiting("CreateContainerConfigError", 'secret "hub" not found'), 5, "ConfigurationMissing", "hub"),
    (waiting("CrashLoopBackOff", last=KILLED), 5, "OutOfMemory", "memory"),
    (container({"running": {}}, FAILED), 5, "Crashing", "exit code 2"),
    (CREATING, 90, "NotStarted", "Secret mine"),
    (CREATING, 30, "", ""),
    (waiting("PostStartHookError", "hook"), 5, "ContainerFailed", "container decode: hook"),
    (init({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling istio"}}), 5, "ImagePullFailed",
     "pod demo-1, init container istio-init: Back-off pulling istio"),
    (init({"waiting": {"reason": "CrashLoopBackOff"}}, FAILED), 5, "Crashing",
     "pod demo-1, init container istio-init ended with exit code 2: bad"),
    (init({"terminated": {"exitCode": 3, "reason": "Error"}}), 5, "Crashing",
     "istio-init ended with exit code 3: Error"),
    (init({"running": {}}, KILLED), 5, "OutOfMemory", "istio-init ran out of memory and was killed: raise its limit"),
    (init({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "v"'}}), 5, "ConfigurationMissing",
     'init container istio-init: secret "v"'),
    (init({"waiting": {"reason": "PodInitializing"}}), 30, "", ""),
    (init({"waiting": {"reason": "PodInitializing"}}), 90, "NotStarted", "Secret mine"),
    (init({"running": {}}), 90, "", ""),
    (sidecar({"waiting": {"reason": "ErrImagePull", "message": "no proxy"}}), 5, "ImagePullFailed",
     "container proxy: no proxy"),
    (sidecar({"waiting": {"reason": "CrashLoopBackOff"}}, FAILED), 5, "Crashing",
     "container proxy ended with exit code 2"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "seconds", "reason", "words"), TROUBLES)
def test_troubles_of_pods(status: Obj, seconds: int, reason: str, words: str) -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "demo-1", "creationTimestamp": text(START)},
        "spec": {"volumes": [{"name": "k", "secret": {"secretName": "mine"}}]},
        "status": status,
    }
    found = pod_troubles([pod], START + timedelta(seconds=seconds))
    assert [trouble.reason for trouble in found] == ([reason] if reason else [])
    assert words in "".join(trouble.message for trouble in found)


def test_a_failure_of_one_pool_does_not_hide_that_of_another() -> None:
    """Both crash, each by another container; of a pool's pods the first speaks."""
    world = World({"decode": {"replicas": 2}})
    world.reconcile()
    world.tick()
    crashed = {"waiting": {"reason": "CrashLoopBackOff"}}
    for pod in world.pods(role="decode"):
        pod["status"] |= init(crashed, {"terminated": {"exitCode": 1, "message": "no vault"}})
    for pod in world.pods(role="prefill"):
        pod["status"] |= container(crashed, FAILED)
    world.reconcile()
    degraded = world.condition("Degraded")
    first = min(pod["metadata"]["name"] for pod in world.pods(role="decode"))
    assert degraded["reason"] == "Crashing"
    assert f"pod {first}, init container istio-init ended with exit code 1: no vault" in degraded["message"]
    assert degraded["message"].count("exit code") == 2


def test_who_waits_for_an_init_container_says_so() -> None:
    """It may run for ever, as one that asks a vault which does not answer."""
    world = World()
    world.reconcile()
    world.tick()
    (pod,) = world.pods(role="decode")
    pod["status"] |= init({"running": {}})
    world.reconcile()
    waits = f"pod {pod['metadata']['name']} waits for its init container istio-init to end"
    assert world.condition("Ready")["message"].endswith(waits)
    pod["spec"]["initContainers"] = [{"name": "istio-init", "restartPolicy": "Always"}]
    world.reconcile()
    assert "init container" not in world.condition("Ready")["message"], "a sidecar is there to run"


VOLUMES: list[Obj] = [
    {"name": "a", "secret": {"secretName": "keys"}},
    {"name": "b", "secret": {"secretName": "token"}},
    {"name": "c", "secret": {"secretName": "extra", "optional": True}},
    {"name": "d", "configMap": {"name": "policy"}},
    {"name": "e", "persistentVolumeClaim": {"claimName": "weights"}},
    {"name": "f", "projected": {"sources": [{"secret": {"name": "tls"}}, {"serviceAccountToken": {}}]}},
    {"name": "g", "hostPath": {"path": "/m"}},
]


@pytest.mark.parametrize(
    ("absent", "says"),
    [
        ({Need("Secret", "keys")}, "for over a minute: Secret keys does not exist; create it"),
        (
            {Need("Secret", "tls"), Need("ConfigMap", "policy"), Need("Secret", "of another pod")},
            "for over a minute: ConfigMap policy and Secret tls do not exist; create them",
        ),
        (
            set(),
            "it needs Secret keys, Secret token, ConfigMap policy, PersistentVolumeClaim weights, Secret tls, "
            "host path /m; `kubectl describe pod demo-1` says what is missing",
        ),
    ],
)
def test_what_is_missing_is_named(absent: set[Need], says: str) -> None:
    metadata = {"name": "demo-1", "creationTimestamp": text(START)}
    pod = {"kind": "Pod", "metadata": metadata, "spec": {"volumes": VOLUMES}, "status": CREATING}
    now = START + timedelta(seconds=90)
    (trouble,) = pod_troubles([pod], now, absent)
    assert says in trouble.message
    named = [("Secret", "keys"), ("Secret", "token"), ("ConfigMap", "policy"), ("Secret", "tls")]
    assert unmet([pod], now) == {*named, ("PersistentVolumeClaim", "weights")}
    assert unmet([pod], START) == set(), "most pods start soon, and nothing is asked for them"


def test_a_pod_that_is_ready_again_is_no_trouble() -> None:
    status = container({"running": {}}, {"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    status["conditions"] = [{"type": "Ready", "status": "True"}]
    pod = {"metadata": {"name": "a", "creationTimestamp": text(START)}, "status": status}
    assert pod_troubles([pod], START) == []


def test_pods_that_a_quota_forbids_are_told_of() -> None:
    world = World()
    world.reconcile()
    world.tick()
    deployment = next(d for d in world.of("Deployment") if "prefill" in d["metadata"]["name"])
    deployment["status"]["conditions"].append(
        {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota", "lastTransitionTime": text(world.now)}
    )
    world.reconcile()
    assert verdict(world, "Degraded") == ("True", "PodsRefused")
    world.now += timedelta(seconds=1801)
    world.reconcile()
    assert verdict(world, "Progressing") == ("False", "ProgressDeadlineExceeded")


def test_a_new_one_that_cannot_be_followed_says_so() -> None:
    """Nothing was made of it, so that it has no revision to tell of."""
    world = World({"decode": {"parallel": {"tensor": 2}}})
    world.reconcile()
    assert verdict(world, "Degraded") == ("True", "EngineLacks")
    assert "revision" not in world.status["decode"]
    assert world.status["decode"]["desired"] == 1


def test_a_revision_that_never_served_does_not_still_serve() -> None:
    world = World()
    first = world.settle().status["revision"]
    world.change({"model": {"revision": "b"}})
    world.unprobed.add(world.reconcile().status["revision"])
    world.tick(2)
    world.change({"model": {"revision": None}})
    made = world.reconcile()
    assert made.status["revision"] == first
    assert "still serves" not in world.condition("Progressing")["message"]


def test_a_change_of_pods_alone_tells_how_far_it_is() -> None:
    """From its first look to its last, though the Deployment's controller no longer says that it was complete once."""
    world = World({"decode": {"replicas": 2}})
    world.settle()
    world.change({"decode": {"resources": {"requests": {"cpu": "2"}}}})
    seen: list[tuple[str, ...]] = []
    while not seen or verdict(world, "Progressing") != ("False", "Complete"):
        world.reconcile()
        seen.append((*verdict(world, "Progressing"), world.condition("Progressing")["message"].partition("; ")[2]))
        world.tick()
    told = [f"{number} of 3 worker pods match the spec" for number in (1, 2, 3)]
    assert list(dict.fromkeys(seen)) == [*(("True", "Updating", text) for text in told), ("False", "Complete", "")]


def test_a_revision_that_was_never_complete_is_being_created() -> None:
    world = World()
    seen: list[tuple[str, str]] = []
    while not seen or seen[-1] != ("False", "Complete"):
        world.reconcile()
        seen.append(verdict(world, "Progressing"))
        world.tick()
    assert seen[0] == ("True", "Creating")


def test_slots_of_workers_that_leave_are_not_reported() -> None:
    def worker(address: str, leaving: bool) -> Obj:
        load = {"slots_total": 7}
        return {"address": address, "role": "decode", "revision": "a", "up": True, "leaving": leaving, "load": load}

    assert FleetView([{"workers": [worker("1", False), worker("2", True)]}]).slots("decode", "a") == [7]


def test_what_a_router_cannot_read_is_the_cause_that_status_names() -> None:
    """It serves on with the workers that it knows; new ones it never finds, which is no fault of the network."""
    world = World()
    world.settle()
    world.router_error = "the pods of namespace models cannot be read: HTTP 401: Unauthorized"
    world.reconcile()
    assert verdict(world, "Ready") == ("True", "Serving")
    assert verdict(world, "Degraded") == ("True", "PodsUnseen")
    message = world.condition("Degraded")["message"]
    assert "cannot be read: HTTP 401: Unauthorized; its token is no longer valid" in message
    assert "ServiceAccount demo-router was replaced: `kubectl rollout restart deployment/demo-router`" in message
    world.change({"model": {"revision": "b"}})
    world.unprobed.add(world.reconcile().status["revision"])
    for _ in range(10):
        world.tick()
        world.reconcile()
    assert verdict(world, "Ready") == ("False", "PodsUnseen")
    assert "cannot be read: HTTP 401" in world.condition("Ready")["message"]
    world.unprobed.clear()
    world.router_error = ""
    world.settle()
    assert verdict(world, "Degraded") == ("False", "AsExpected")


def test_status_tells_since_when_all_routers_have_their_keys() -> None:
    world = World({"router": {"replicas": 2}})
    world.settle()
    assert "keysSince" not in world.status["router"], "nothing is said by routers of before"
    early, late = text(START), text(START + timedelta(minutes=2))
    world.keys_since = [late, early]
    world.reconcile()
    assert world.status["router"] == {"desired": 2, "ready": 2, "keysSince": early}, "one has the new keys"
    world.keys_since = [late, late]
    world.silent_routers = 1
    world.reconcile()
    assert world.status["router"]["keysSince"] == early, "the other one does not answer"
    world.silent_routers = 0
    world.reconcile()
    assert world.status["router"]["keysSince"] == late
    world.keys_since = []
    world.reconcile()
    assert "keysSince" not in world.status["router"]
