"""Which workers are probed together, and what the router concludes from a probe."""

import asyncio
from functools import partial

import pytest

from tests.router.conftest import Deploy, until
from v4_core.blocks import pack_ids
from v4_core.v1 import worker_pb2 as pb
from v4_router.endpoints import WorkerEndpoint
from v4_router.metrics import Metrics
from v4_router.prober import ProbeFailed, _Probe
from v4_router.workers import WorkerLink


async def test_decode_alone_first_then_prefill_through_it(deploy: Deploy) -> None:
    d = await deploy(1, 1, ready=False)
    d.decode[0].may_adopt.clear()
    decode, prefill = (d.router.fleet.links[w.address] for w in (d.decode[0], d.prefill[0]))
    await until(lambda: decode.usable, "decode is proven without prefill")
    await until(lambda: len(d.decode[0].starts) == 2, "prefill's cache is offered")
    assert not prefill.usable
    assert not d.router.ready
    d.decode[0].may_adopt.set()
    await until(lambda: d.router.ready, "the cache was taken over")
    assert [s.phase for s in d.decode[0].starts] == [pb.WHOLE, pb.DECODE]
    assert prefill.usable
    await d.idle()


async def test_new_decode_is_proven_by_a_transfer(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    await d.decode[0].kill()
    await d.decode[0].restart()
    await d.wait_up()
    assert [s.phase for s in d.decode[0].starts] == [pb.DECODE]
    await d.idle()
    assert not d.decode[0].cancels


async def test_a_decode_worker_that_cannot_pull_gets_no_requests_and_shows_the_reason(deploy: Deploy) -> None:
    d = await deploy(1, 2)
    victim = d.decode[0]
    await victim.kill()
    victim.refuse_always = pb.TRANSFER
    await victim.restart()
    link = d.router.fleet.links[victim.address]
    await until(lambda: "TRANSFER: refused" in link.error, "the probe failed")
    victim.starts.clear()
    for _ in range(4):
        assert (await d.complete([10], max_tokens=3)).status_code == 200
    assert all(s.request.startswith("probe") for s in victim.starts)
    victim.refuse_always = None
    await d.wait_up()
    assert link.error == ""


@pytest.mark.parametrize("trouble", ["refuses", "does not begin"])
async def test_a_failure_of_prefill_does_not_fail_the_probe_of_decode(
    deploy: Deploy, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("v4_router.prober._START_SECONDS", 0.1)
    d = await deploy(1, 1)
    if trouble == "refuses":
        d.prefill[0].refuse_always = pb.OVERLOADED
    else:
        d.prefill[0].hangs = True
    await d.decode[0].kill()
    await d.decode[0].restart()
    await d.wait_up()
    assert [s.phase for s in d.decode[0].starts] == [pb.WHOLE]
    await d.idle()


@pytest.mark.usefixtures("short_silence")
async def test_a_new_connection_to_the_same_process_needs_no_new_probe(deploy: Deploy) -> None:
    d = await deploy(1, 1, connect_timeout_seconds=0.2)
    link = d.router.fleet.links[d.decode[0].address]
    d.decode[0].describes.clear()
    await until(lambda: not link.up, "the silence is noticed")
    d.decode[0].describes.set()
    await d.wait_up()
    assert not d.decode[0].starts


async def test_a_prefill_worker_is_probed_when_a_decode_worker_of_its_kind_appears(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    w = d.decode[0]
    d.discover(d.prefill[0].endpoint(revision="new"), w.endpoint())
    await d.prefill[0].kill()
    await d.prefill[0].restart()
    link = d.router.fleet.links[d.prefill[0].address]
    await until(lambda: link.open and not link.probed, "it came back")
    assert (await d.complete([10], max_tokens=3)).headers["x-v4serve-route"].startswith("prefill=-;")
    assert not link.probed
    d.discover(d.prefill[0].endpoint(revision="new"), w.endpoint(revision="new"))
    await d.wait_up()
    assert d.router.fleet.pairs() == {("new", "one")}


async def test_a_prefill_worker_that_fits_no_decode_worker_shows_what_differs(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    await d.prefill[0].kill()
    d.prefill[0].fingerprint, d.decode[0].fingerprint = "weights=a eos_token_id=1", "weights=a eos_token_id=1,5"
    await d.decode[0].kill()
    await d.decode[0].restart()
    await d.prefill[0].restart()
    link = d.router.fleet.links[d.prefill[0].address]
    expected = f"it and {d.decode[0].address} differ in eos_token_id (1 here, 1,5 there)"
    await until(lambda: expected in link.error, "the reason is told")
    assert not link.probed
    assert not d.prefill[0].starts
    d.discover(d.prefill[0].endpoint())
    await until(lambda: not link.error, "the one that differed has left")
    d.discover(d.prefill[0].endpoint(), d.decode[0].endpoint())
    await until(lambda: expected in link.error, "the reason is told again")
    d.prefill[0].fingerprint = d.decode[0].fingerprint
    await d.prefill[0].kill()
    await d.prefill[0].restart()
    await d.wait_up()
    assert link.error == ""


async def test_a_worker_that_gives_the_probe_back_is_not_proven(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    await d.decode[0].kill()
    d.decode[0].hands_back.set()
    await d.decode[0].restart()
    link = d.router.fleet.links[d.decode[0].address]
    await until(lambda: "gave the request back" in link.error, "the probe failed")
    assert not link.probed
    d.decode[0].hands_back.clear()
    await d.wait_up()
    await d.idle()


async def test_probes_that_time_out(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("v4_router.prober._TIMEOUT_SECONDS", 0.1)
    d = await deploy(0, 1, ready=False)
    d.decode[0].hangs = True
    link = d.router.fleet.links[d.decode[0].address]
    await until(lambda: "no token within 0.1 s" in link.error, "it is given up")
    d.decode[0].hangs = False
    await until(lambda: d.router.ready, "the next probe comes through")
    assert d.decode[0].cancels
    await d.idle()


STARTED = pb.Event(started=pb.Started(lease=1))
ADOPTED = pb.Event(adopted=pb.Adopted())
FIRST = pb.Event(tokens=pb.Tokens(choice=0, start=0, ids=pack_ids([1])))
LAST = pb.Event(tokens=pb.Tokens(choice=0, start=1, ids=pack_ids([1]), finish=pb.LENGTH))
STOPPED = pb.Event(tokens=pb.Tokens(choice=0, start=1, ids=pack_ids([1]), finish=pb.STOP))
GIVEN_BACK = pb.Event(tokens=pb.Tokens(choice=0, start=1, finish=pb.MIGRATE))
BROKEN = pb.Event(failed=pb.Failed(reason=pb.INTERNAL, message="broken"))
FULL = pb.Event(failed=pb.Failed(reason=pb.OVERLOADED, message="full"))


@pytest.mark.parametrize(
    ("received", "error"),
    [
        ([("prefill", STARTED), ("prefill", FIRST), ("decode", ADOPTED), ("decode", LAST)], ""),
        ([("prefill", STARTED), ("prefill", FIRST), ("decode", LAST)], "without adopting"),
        ([("prefill", STARTED), ("prefill", FIRST), ("decode", ADOPTED), ("decode", STOPPED)], "ended after stop"),
        ([("prefill", STARTED), ("prefill", None)], "was lost"),
        ([("prefill", STARTED), ("prefill", BROKEN)], "INTERNAL: broken"),
        ([("prefill", STARTED), ("decode", ADOPTED), ("decode", BROKEN)], "INTERNAL: broken"),
        ([("prefill", STARTED), ("decode", FULL)], "OVERLOADED: full"),
        (
            [("prefill", STARTED), ("prefill", FIRST), ("decode", ADOPTED), ("decode", GIVEN_BACK)],
            "gave the request back",
        ),
    ],
)
async def test_a_probe_drops_every_leg_however_it_ends(received: list[tuple[str, pb.Event | None]], error: str) -> None:
    """A leg that stays would keep a worker that is no longer listed, and the work that still runs on it."""
    prefill = WorkerLink(WorkerEndpoint("prefill:1", "prefill"), 1.0)
    decode = WorkerLink(WorkerEndpoint("decode:1", "decode"), 1.0)
    probe = asyncio.ensure_future(_Probe(pack_ids([0]), prefill, decode, Metrics()).run())
    for role, event in received:
        link = prefill if role == "prefill" else decode
        await until(partial(bool, link._legs), "the leg was started")
        for deliver in list(link._legs.values()):
            deliver(event)
    if error:
        with pytest.raises(ProbeFailed, match=error):
            await probe
    else:
        await probe
    assert (prefill.legs, decode.legs) == (0, 0)
