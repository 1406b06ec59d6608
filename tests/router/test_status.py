"""The workers and revisions in /fleet, over real links."""

from typing import Any

import pytest

from tests.router.conftest import Deploy, Deployment, until
from v4_core.v1 import worker_pb2 as pb
from v4_router.status import fleet_status


def states(d: Deployment) -> list[str]:
    return [one["state"] for one in fleet_status(d.router)["workers"]]


@pytest.mark.usefixtures("short_silence")
async def test_states_of_a_worker(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    p, w = d.prefill[0], d.decode[0]
    assert states(d) == ["ready", "ready"]
    d.discover(p.endpoint(leaving=True), w.endpoint(ready=False))
    assert states(d) == ["draining", "not ready"]
    d.discover(p.endpoint(), w.endpoint())
    w.draining = True
    await until(lambda: states(d) == ["ready", "draining"], "the worker is asked after some silence", seconds=30)
    w.draining = False
    p.refuse_always = pb.INTERNAL
    await p.kill()
    await until(lambda: states(d)[0] == "down", "the router misses the worker")
    await p.restart()
    await until(lambda: states(d)[0] == "unproven", "it is up again")


async def test_why_a_worker_is_down(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    told: list[dict[str, Any]] = fleet_status(d.router)["workers"]
    assert [one["error"] for one in told] == ["", ""]
    await d.decode[0].kill()
    address = d.decode[0].address
    reason = f"decode worker {address}: UNAVAILABLE: Connection refused"
    await until(lambda: fleet_status(d.router)["workers"][1]["error"] == reason, "the reason is told, and no more")


async def test_transfers_are_counted_by_revision(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    (before,) = fleet_status(d.router)["revisions"]
    for _ in range(3):
        await d.complete([10], max_tokens=2)
    (after,) = fleet_status(d.router)["revisions"]
    assert after["transfers"] - before["transfers"] == 3
    assert after["transferred_bytes"] - before["transferred_bytes"] == 3000


async def test_transfers_of_removed_revisions_stay_in_the_total_only(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    await d.complete([10], max_tokens=2)
    before = fleet_status(d.router)
    total = before["router"]
    assert total["transfers"] == before["revisions"][0]["transfers"] > 0
    d.discover(*(worker.endpoint(revision="new") for worker in d.workers))
    await d.wait_up()
    await d.complete([10], max_tokens=2)
    after = fleet_status(d.router)
    assert after["router"]["transfers"] >= total["transfers"] + 1
    assert after["router"]["transferred_bytes"] == 1000 * after["router"]["transfers"]
    assert after["router"]["transfer_seconds"] == 0.25 * after["router"]["transfers"]
    assert set(d.router.metrics.transfers) == {"new"}
    d.discover(*(worker.endpoint() for worker in d.workers))
    (back,) = fleet_status(d.router)["revisions"]
    assert (back["revision"], back["transfers"]) == ("", 0)
    assert fleet_status(d.router)["router"]["transfers"] == after["router"]["transfers"]
