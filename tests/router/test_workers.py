"""Connections to workers: streams, losses, and the load that placement sees."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.router.conftest import Deploy, until
from tests.router.fake_worker import Caches, FakeWorker
from v4_core.token import TokenFile
from v4_core.v1 import worker_pb2 as pb
from v4_router.endpoints import WorkerEndpoint
from v4_router.workers import WorkerLink


def test_legs_sent_since_the_last_report_count() -> None:
    link = WorkerLink(WorkerEndpoint("a:1", "prefill"), 1.0)
    link.load = pb.Load(queued_tokens=100, running=2, waiting=1)
    link.start(pb.Start(request="r", n=3), 50, lambda event: None)
    assert (link.view().queued_tokens, link.view().sequences) == (150, 6)


async def test_a_burst_is_spread(deploy: Deploy) -> None:
    """Requests that arrive together, before any worker reports its load, are shared equally."""
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


@pytest.mark.usefixtures("short_silence")
async def test_a_silent_worker_that_does_not_answer_is_lost(deploy: Deploy) -> None:
    d = await deploy(1, 2, connect_timeout_seconds=1.0)
    victim = d.decode[0]
    link = d.router.fleet.links[victim.address]
    victim.describes.clear()
    await until(lambda: not link.up, "the silence is noticed")
    assert (await d.complete([10], max_tokens=3)).status_code == 200
    victim.describes.set()
    await d.wait_up()


async def test_a_worker_that_never_begins_its_stream_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("v4_router.workers._SILENCE_SECONDS", 0.05)
    worker = FakeWorker("decode", Caches())
    worker.serves.clear()
    async with linked(worker, connect_timeout_seconds=0.2) as link:
        await until(lambda: "sent nothing on its stream for 0.2 s" in link.error, "given up")
        assert not link.up
        worker.serves.set()
        await until(lambda: link.up, "the next stream begins")
        assert link.error == ""


async def test_the_component_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret-1\n")
    worker = FakeWorker("decode", Caches())
    worker.token = "secret-2"
    async with linked(worker, token=TokenFile(file)) as link:
        await until(lambda: "UNAUTHENTICATED" in link.error, "refused")
        assert "secret" not in link.error
        file.write_text("secret-2-of-another-length\n")
        worker.token = "secret-2-of-another-length"
        await until(lambda: link.up, "the file was read again")


async def test_a_worker_with_another_tokenizer_is_not_used() -> None:
    """During a change of models, routers and workers of both run; token ids of one mean nothing to the other."""
    worker = FakeWorker("decode", Caches())
    worker.tokenizer = "other"
    async with linked(worker, tokenizer="own") as link:
        await until(lambda: "another tokenizer" in link.error, "refused")
        assert not link.up
        worker.tokenizer = "own"
        await until(lambda: link.up, "the same tokenizer")


async def test_only_the_loss_of_a_known_worker_is_a_warning_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def levels(worker: FakeWorker) -> set[str]:
        return {record.levelname for record in caplog.records if f"{worker.address}: UNAV" in record.getMessage()}

    caplog.set_level(logging.INFO, "v4_router.workers")
    worker, missing, late = (FakeWorker("decode", Caches()) for _ in range(3))
    async with linked(worker) as link:
        await until(lambda: link.up, "it is up")
        await worker.kill()
        await until(lambda: levels(worker) == {"WARNING"}, "its loss is told")
    async with linked(missing, alive=False):
        await until(lambda: levels(missing) == {"INFO"}, "nobody is there, perhaps not yet")
    monkeypatch.setattr("v4_router.workers._START_SECONDS", 0.3)
    async with linked(late, alive=False):
        await until(lambda: levels(late) == {"INFO", "WARNING"}, "that was too long")


class WithoutServe(FakeWorker):
    """A worker that answers Describe, but not Serve."""

    def __init__(self) -> None:
        super().__init__("decode", Caches())
        self.times: list[float] = []

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.WorkerInfo:
        self.times.append(asyncio.get_running_loop().time())
        return await super().Describe(request, context)

    async def Serve(self, requests: Any, context: Any) -> None:  # type: ignore[override]
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no Serve here")


@asynccontextmanager
async def linked(
    worker: FakeWorker,
    *,
    connect_timeout_seconds: float = 5.0,
    token: TokenFile | None = None,
    tokenizer: str = "",
    alive: bool = True,
) -> AsyncIterator[WorkerLink]:
    """Runs the link to a worker. Unless `alive`, the worker has been killed before."""
    await worker.start()
    if not alive:
        await worker.kill()
    link = WorkerLink(worker.endpoint(), connect_timeout_seconds, token, tokenizer)
    running = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await worker.kill()


async def test_a_worker_is_up_after_the_first_message_of_its_stream() -> None:
    worker = FakeWorker("decode", Caches())
    worker.serves.clear()
    async with linked(worker) as link:
        await until(lambda: bool(link.info.instance), "it described itself")
        assert (link.up, link.open) == (False, False)
        worker.serves.set()
        await until(lambda: link.open, "its stream began")


async def test_a_worker_without_a_stream_is_asked_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("v4_router.workers._BACKOFF_SECONDS", (0.02, 2.0))
    worker = WithoutServe()
    async with linked(worker) as link:
        await until(lambda: len(worker.times) == 5, "asked five times")
        assert not link.up
    assert worker.times[4] - worker.times[0] > 0.04 + 0.08 + 0.16 + 0.32


async def test_a_lost_stream_leaves_no_task_behind() -> None:
    """Without an end of the outgoing messages, gRPC's sending task would wait for the next one for ever."""

    def sending() -> int:
        return sum("consume_request_iterator" in repr(task.get_coro()) for task in asyncio.all_tasks())

    worker = FakeWorker("decode", Caches())
    async with linked(worker) as link:
        await until(lambda: link.up, "up")
        assert sending() == 1
        await worker.kill()
        await until(lambda: not link.up, "lost")
        await until(lambda: sending() == 0, "ended")


async def test_a_process_that_took_the_address_after_describe_is_described_again() -> None:
    worker = FakeWorker("decode", Caches())
    worker.serves.clear()
    async with linked(worker) as link:
        await until(lambda: bool(link.info.instance), "the first one described itself")
        worker.instance, worker.fingerprint = "decode-of-later", "two"
        worker.serves.set()
        await until(lambda: link.open, "its stream began")
        assert (link.info.instance, link.info.fingerprint) == ("decode-of-later", "two")
