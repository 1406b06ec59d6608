"""Pools that grow and shrink, pods that are deleted, killed and changed, under streams that must not notice."""

import time
from collections.abc import Callable

import pytest

from tests.cluster.answers import DEMO, answers
from tests.cluster.installed import DEADLINE_SECONDS, NAME, Installed, is_ready, more_streams, name_of, under_load
from tests.cluster.machine.local import LocalCluster

pytestmark = pytest.mark.cluster

TOKENS = 160
_SEEN_TO_BE_GONE_SECONDS = 2.0  # until kube-proxy sends no connection to a pod that went without a word


@pytest.fixture(autouse=True)
def _service(installed: Installed) -> None:
    if not isinstance(installed.cluster, LocalCluster):
        pytest.skip("a forwarded port of another cluster ends with its pod; these tests need the Service itself")


def _size(installed: Installed, prefill: int, decode: int, routers: int = 1) -> None:
    """As a user may: decode by its scale, the others by the spec."""
    installed.kubectl("scale", f"v4d/{NAME}", f"--replicas={decode}")
    installed.patch({"prefill": {"replicas": prefill}, "router": {"replicas": routers}})


def _worked(installed: Installed, workers: int) -> Callable[[], bool]:
    """Whether streams have been seen on so many decode workers."""
    seen: set[str] = set()

    def look() -> bool:
        for fleet in installed.fleet():
            seen.update(w["address"] for w in fleet["workers"] if w["role"] == "decode" and w["load"]["running"])
        return len(seen) >= workers

    return look


def test_pools_grow_and_shrink(demo: Installed) -> None:
    before = demo.pods_as_they_are()
    with under_load(demo, answers(DEMO, TOKENS)):
        _size(demo, 2, 3)
        demo.restart_operator()
        demo.settle()
        assert before.items() < demo.pods_as_they_are().items()
        assert demo.v4d()["status"]["decode"]["summary"] == "3/3"
        demo.cluster.wait(_worked(demo, 3), DEADLINE_SECONDS, "all decode workers have streams")
        _size(demo, 1, 1)
        demo.restart_operator()
        demo.settle()
    assert len(demo.pods_as_they_are()) == 3


def test_pods_are_deleted_and_killed(demo: Installed) -> None:
    """Of two of each kind: one of each at once, asked to end; then one after the other, killed.

    Who is asked ends its streams, or hands them on, before it goes. Who is killed loses nothing but a router's own.
    """
    _size(demo, 2, 2, routers=2)
    demo.settle()
    lost_until = 0.0
    with under_load(demo, answers(DEMO, TOKENS), may_fail=lambda stream: stream.began < lost_until) as load:
        gone = {name_of(demo.pods(role)[0]) for role in ("prefill", "decode", "router")}
        demo.kubectl("delete", "pod", "--wait=false", *gone)
        demo.restart_operator()
        demo.cluster.wait(lambda: not _ready(demo) & gone, DEADLINE_SECONDS, "they have ended")
        demo.settle()
        for role in ("prefill", "decode"):
            _kill(demo, role)
            more_streams(demo, load)
        assert not load.failed()
        _kill(demo, "router")
        lost_until = time.monotonic() + _SEEN_TO_BE_GONE_SECONDS
        demo.settle()
    assert len(load.failed()) <= load.clients


def test_pods_change_and_revisions_replace_each_other(demo: Installed) -> None:
    """Without an outage, of revisions where there are two of each; streams that outlast a pod's time are handed on."""
    before = demo.revision()
    with under_load(demo, answers(DEMO, TOKENS)):
        demo.patch({"rollout": {"drainSeconds": 1}})
        demo.restart_operator()
        demo.settle()
        assert demo.revision() == before
        _size(demo, 2, 2)
        demo.settle()
        demo.patch({"model": {"revision": "next"}, "rollout": {"strategy": "Replace"}})
        demo.restart_operator()
        demo.settle()
        assert demo.revision() != before


def _ready(installed: Installed) -> set[str]:
    """Names of pods that serve; those that are ending do so to their end."""
    return {name_of(pod) for role in ("prefill", "decode", "router") for pod in installed.pods(role) if is_ready(pod)}


def _kill(installed: Installed, role: str) -> None:
    pod = name_of(installed.pods(role)[0])
    installed.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
