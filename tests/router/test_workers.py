"""Links to workers: what placement is told of them."""

import asyncio

from tests.router.conftest import Deploy, until
from v4_core.v1 import worker_pb2 as pb
from v4_router.workers import WorkerLink


def test_what_was_sent_since_the_last_report_counts() -> None:
    link = WorkerLink("a:1", "prefill", 1.0)
    link.load = pb.Load(queued_tokens=100, running=2, waiting=1)
    link.start(pb.Start(request="r", n=3), 50, lambda event: None)
    assert (link.view().queued_tokens, link.view().sequences) == (150, 6)


async def test_a_burst_is_spread(deploy: Deploy) -> None:
    """All at once, before any worker could report: equal shares."""
    d = await deploy(2, 2)
    for worker in d.decode:
        worker.may_adopt.clear()
    tasks = [asyncio.create_task(d.complete([10 + i] * 300, max_tokens=3)) for i in range(8)]
    await until(lambda: sum(len(w.starts) for w in d.decode) == 8, "all were sent")
    assert [len(w.starts) for w in d.workers] == [4, 4, 4, 4]
    for worker in d.decode:
        worker.may_adopt.set()
    assert {task.status_code for task in await asyncio.gather(*tasks)} == {200}
    await d.idle()


async def test_a_silent_worker_that_does_not_answer_is_lost(deploy: Deploy) -> None:
    d = await deploy(1, 2, connect_timeout_seconds=0.2)
    victim = d.decode[0]
    link = d.router.fleet.links[victim.address]
    victim.describes.clear()
    await until(lambda: not link.up, "the silence is noticed")
    assert (await d.complete([10], max_tokens=3)).status_code == 200
    victim.describes.set()
    await d.wait_up()
