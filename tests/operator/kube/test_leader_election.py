"""One replica leads: it takes, renews, loses and releases the Lease, although clocks differ."""

import asyncio
import re
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests.kube.fake_server import FakeServer, status
from tests.operator.conftest import until
from v4_kube.client import KubeClient
from v4_kube.errors import ApiError
from v4_operator.errors import LeadershipLost
from v4_operator.kube import leader_election as module
from v4_operator.kube.leader_election import (
    DEADLINE_SECONDS,
    DURATION_SECONDS,
    GONE_SECONDS,
    LeaderElection,
    ObservedLease,
)
from v4_operator.process import identity_of

PATH = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the pauses between retries and renewals."""
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.01)


def record(holder: str, renewed: str = "1") -> dict[str, Any]:
    return {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}


def test_a_lease_is_free_without_a_holder_or_after_its_own_time_without_a_change() -> None:
    observed = ObservedLease()
    assert ObservedLease().free({}, 0.0)
    assert ObservedLease().free(record(""), 0.0)
    assert not observed.free(record("a"), 0.0)
    assert not observed.free(record("a"), 15.0)
    assert not observed.free(record("a", "2"), 15.1), "it was renewed"
    assert not observed.free(record("a", "2"), 30.0)
    assert not observed.free(record("b", "2"), 30.2), "another one took it"
    assert observed.free(record("b", "2"), 45.3)


@given(st.lists(st.tuples(st.floats(0.01, 40), st.booleans()), max_size=30), st.text())
def test_timestamps_of_other_clocks_do_not_matter(looks: list[tuple[float, bool]], stamp: str) -> None:
    """A Lease is free if its last change was seen longer ago than its duration, whatever its timestamps are."""
    observed, now, changed, version = ObservedLease(), 0.0, 0.0, 0
    observed.free(record("a", f"{stamp}0"), now)
    for pause, renewed in looks:
        now += pause
        if renewed:
            version, changed = version + 1, now
        assert observed.free(record("a", f"{stamp}{version}"), now) is (now - changed > 15)


async def test_the_lease_is_taken_renewed_and_released(server: FakeServer, api: KubeClient) -> None:
    first, second = LeaderElection(api, "n", "l", "first"), LeaderElection(api, "n", "l", "second")
    with pytest.raises(LeadershipLost):
        first.check()
    await first.acquire()
    first.check()
    waiting = asyncio.create_task(second.acquire())
    keeping = asyncio.create_task(first.keep())
    await until(lambda: second.holder == "first" and server.count(f"PUT {PATH}") > 2)
    assert not waiting.done()
    spec = server.objects[PATH]["spec"]
    assert spec["holderIdentity"] == "first"
    assert spec["leaseDurationSeconds"] == DURATION_SECONDS
    assert spec["renewTime"] > spec["acquireTime"]
    keeping.cancel()
    await first.release()
    with pytest.raises(LeadershipLost):
        first.check()
    await asyncio.wait_for(waiting, 10)
    assert (
        server.objects[PATH]["spec"] | {"holderIdentity": "second", "leaseTransitions": 1}
        == (server.objects[PATH]["spec"])
    )


async def test_a_dead_holder_is_waited_for_by_the_local_clock(server: FakeServer, api: KubeClient) -> None:
    await server.put(PATH, {"metadata": {"namespace": "n", "name": "l"}, "spec": record("dead", "in the future")})
    clock = Clock()
    election = LeaderElection(api, "n", "l", "me", clock)
    waiting = asyncio.create_task(election.acquire())
    await until(lambda: election.holder == "dead")
    clock.now += 14.0
    looks = server.count("GET")
    await until(lambda: server.count("GET") > looks + 2)
    assert not waiting.done()
    clock.now += 1.5
    await asyncio.wait_for(waiting, 10)
    assert server.objects[PATH]["spec"]["holderIdentity"] == "me"


async def test_a_process_with_the_identity_of_the_holder_does_not_wait(server: FakeServer, api: KubeClient) -> None:
    await LeaderElection(api, "n", "l", "pod").acquire()
    await asyncio.wait_for(LeaderElection(api, "n", "l", "pod").acquire(), 10)
    assert server.objects[PATH]["spec"]["holderIdentity"] == "pod"


async def test_one_of_many_replicas_becomes_leader(server: FakeServer, api: KubeClient) -> None:
    elections = [LeaderElection(api, "n", "l", str(index)) for index in range(8)]
    tasks = [asyncio.create_task(election.acquire()) for election in elections]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await until(lambda: sum(election.holder != "" for election in elections) == 8)
    assert sum(task.done() for task in tasks) == 1
    for task in tasks:
        task.cancel()


async def test_leadership_is_lost_at_once_to_another_holder(server: FakeServer, api: KubeClient) -> None:
    election = LeaderElection(api, "n", "l", "me")
    await election.acquire()
    await server.put(PATH, {"metadata": {"namespace": "n", "name": "l"}, "spec": record("thief")})
    with pytest.raises(LeadershipLost, match="thief holds the Lease now"):
        await asyncio.wait_for(election.keep(), 10)


async def test_leadership_is_lost_if_the_lease_is_deleted(server: FakeServer, api: KubeClient) -> None:
    election = LeaderElection(api, "n", "l", "me")
    await election.acquire()
    await server.remove(PATH)
    with pytest.raises(LeadershipLost, match="nobody holds the Lease now"):
        await asyncio.wait_for(election.keep(), 10)


async def test_an_edit_of_the_lease_does_not_end_leadership(server: FakeServer, api: KubeClient) -> None:
    election = LeaderElection(api, "n", "l", "me")
    await election.acquire()
    live = server.objects[PATH]
    await server.put(PATH, {**live, "metadata": {**live["metadata"], "annotations": {"a": "b"}}})
    keeping = asyncio.create_task(election.keep())
    await until(lambda: server.count(f"PUT {PATH}") > 2)
    assert not keeping.done()
    assert server.objects[PATH]["metadata"]["annotations"] == {"a": "b"}
    keeping.cancel()


async def test_renewals_are_retried_until_the_deadline(server: FakeServer, api: KubeClient) -> None:
    clock = Clock()
    election = LeaderElection(api, "n", "l", "me", clock)
    await election.acquire()
    server.fault = lambda request: status(503, "ServiceUnavailable") if request.method == "PUT" else None
    keeping = asyncio.create_task(election.keep())
    await until(lambda: server.count(f"PUT {PATH}") > 3)
    server.fault = lambda _: None
    clock.now += DEADLINE_SECONDS - 1
    renewed = server.objects[PATH]["spec"]["renewTime"]
    await until(lambda: server.objects[PATH]["spec"]["renewTime"] > renewed)
    election.check()
    server.fault = lambda request: status(503, "ServiceUnavailable") if request.method == "PUT" else None
    clock.now += DEADLINE_SECONDS + 1
    with pytest.raises(LeadershipLost):
        election.check()
    with pytest.raises(LeadershipLost):
        await asyncio.wait_for(keeping, 10)


async def test_the_lease_is_taken_after_errors(server: FakeServer, api: KubeClient) -> None:
    server.fault = lambda _: status(403, "Forbidden", "no rights yet")
    election = LeaderElection(api, "n", "l", "me")
    waiting = asyncio.create_task(election.acquire())
    await until(lambda: server.count("GET") > 2)
    assert election.problem.startswith("cannot take the Lease n/l: GET")
    assert election.problem.endswith("no rights yet")
    server.fault = lambda _: web.Response(status=502, text="<html>")
    asked = server.count("GET")
    await until(lambda: server.count("GET") > asked + 2)
    server.fault = lambda _: None
    await asyncio.wait_for(waiting, 10)
    assert election.problem == ""


async def test_a_release_that_fails_raises(server: FakeServer, api: KubeClient) -> None:
    election = LeaderElection(api, "n", "l", "me")
    await election.acquire()
    await server.put(PATH, {"metadata": {"namespace": "n", "name": "l"}, "spec": record("thief")})
    with pytest.raises(ApiError, match="Conflict"):
        await election.release()


POD = "/api/v1/namespaces/n/pods/former"
PHASES: dict[str, Any] = {"metadata": {"namespace": "n", "name": "former"}, "status": {"phase": "Running"}}


@pytest.mark.parametrize("ended", [None, {**PHASES, "status": {"phase": "Failed"}}], ids=["deleted", "evicted"])
async def test_a_holder_without_a_pod_is_waited_for_as_long_as_a_renewal_may_take(
    server: FakeServer, api: KubeClient, ended: dict[str, Any] | None
) -> None:
    spec = {**record("former"), "leaseDurationSeconds": DURATION_SECONDS}
    await server.put(PATH, {"metadata": {"namespace": "n", "name": "l"}, "spec": spec})
    if ended:
        await server.put(POD, ended)
    clock = Clock()
    election = LeaderElection(api, "n", "l", "me", clock)
    waiting = asyncio.create_task(election.acquire())
    await until(lambda: election.problem == "waiting: former leads and holds the Lease n/l, but its pod has ended")
    clock.now += GONE_SECONDS - 1
    looks = server.count(f"GET {PATH}")
    await until(lambda: server.count(f"GET {PATH}") > looks + 2)
    live = server.objects[PATH]
    await server.put(PATH, {**live, "spec": {**spec, "renewTime": "2"}})  # its process outlived its pod
    looks = server.count(f"GET {PATH}")
    await until(lambda: server.count(f"GET {PATH}") > looks + 2)
    clock.now += GONE_SECONDS - 1
    looks = server.count(f"GET {PATH}")
    await until(lambda: server.count(f"GET {PATH}") > looks + 2)
    assert not waiting.done()
    clock.now += 2
    await asyncio.wait_for(waiting, 10)
    assert (election.problem, server.objects[PATH]["spec"]["holderIdentity"]) == ("", "me")


async def test_a_pod_that_is_being_deleted_still_leads(server: FakeServer, api: KubeClient) -> None:
    """The process in the pod leads until it ends; a replica that starts meanwhile is not ready."""
    spec = {**record("former"), "leaseDurationSeconds": DURATION_SECONDS}
    await server.put(PATH, {"metadata": {"namespace": "n", "name": "l"}, "spec": spec})
    await server.put(POD, PHASES)
    clock = Clock()
    election = LeaderElection(api, "n", "l", "me", clock)
    waiting = asyncio.create_task(election.acquire())
    await until(lambda: server.count(f"GET {POD}") > 2)
    assert election.problem == ""
    await server.put(POD, {**PHASES, "metadata": {**PHASES["metadata"], "deletionTimestamp": "now"}})
    await until(lambda: election.problem.endswith("its pod is being deleted"))
    clock.now += GONE_SECONDS + 1
    looks = server.count(f"GET {POD}")
    await until(lambda: server.count(f"GET {POD}") > looks + 2)
    assert not waiting.done()
    clock.now += DURATION_SECONDS
    await asyncio.wait_for(waiting, 10)


@pytest.mark.parametrize("holder", ["laptop_1a2b", "pod_elsewhere", "former"])
async def test_a_holder_whose_pod_is_unknown_has_the_full_duration(
    server: FakeServer, api: KubeClient, holder: str
) -> None:
    spec = {**record(holder), "leaseDurationSeconds": DURATION_SECONDS}
    await server.put(PATH, {"metadata": {"namespace": "n", "name": "l"}, "spec": spec})
    server.fault = lambda request: status(403, "Forbidden") if request.path == POD else None
    clock = Clock()
    election = LeaderElection(api, "n", "l", "me", clock)
    waiting = asyncio.create_task(election.acquire())
    await until(lambda: election.holder == holder)
    clock.now += DURATION_SECONDS - 1
    looks = server.count(f"GET {PATH}")
    await until(lambda: server.count(f"GET {PATH}") > looks + 2)
    assert (waiting.done(), election.problem) == (False, "")
    clock.now += 2
    await asyncio.wait_for(waiting, 10)


@pytest.mark.parametrize(
    ("lease", "pod", "identity"),
    [("a", "a", r"host"), ("a", "b", r"host_b"), ("a", "", r"host_[0-9a-f]{8}")],
    ids=["a pod beside the Lease", "a pod elsewhere", "no pod"],
)
def test_only_a_pod_in_the_namespace_of_the_lease_is_identified_by_its_name(
    monkeypatch: pytest.MonkeyPatch, lease: str, pod: str, identity: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    assert re.fullmatch(identity, identity_of(lease, pod))
