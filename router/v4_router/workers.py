"""The router's side of one worker: one bidirectional stream, kept up, and the fan-out of its events.

Knows addresses, streams and load; not what a request is beyond (request, attempt). A worker is up from the first
message of its stream, its load, to the stream's end, which is the end of everything that was started on it: each open
leg then hears None.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal

import grpc
import grpc.aio

from v4_core.v1 import worker_pb2 as pb
from v4_core.v1 import worker_pb2_grpc as rpc
from v4_router.placement import WorkerView
from v4_router.prefix_index import PrefixIndex

log = logging.getLogger(__name__)

Role = Literal["prefill", "decode"]
Deliver = Callable[[pb.Event | None], None]

MESSAGE_BYTES = 64 << 20  # a prompt of a million ids is 4 MB
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
)
_BACKOFF_SECONDS = (0.05, 2.0)  # first and longest pause between two connections
_SILENCE_SECONDS = 2.0  # after which the worker is asked for its load, which also proves that it lives


class WrongWorker(Exception):
    """Something else than the expected kind of worker answers at an address."""


@dataclass(slots=True)
class Leg:
    """One attempt of a request on one worker, from Start until it is dropped."""

    link: "WorkerLink"
    request: str
    attempt: int
    kind: int  # pb.Leg


class WorkerLink:
    """One worker. `run` keeps the stream up; the other methods never block and belong to the same event loop."""

    def __init__(self, address: str, role: Role, connect_timeout_seconds: float) -> None:
        self.address = address
        self.role = role
        self.prefixes = PrefixIndex()
        self.info = pb.WorkerInfo()
        self.load = pb.Load()
        self.up = False
        self._timeout = connect_timeout_seconds
        self._legs: dict[tuple[str, int], Deliver] = {}
        self._outgoing: asyncio.Queue[pb.ToWorker] = asyncio.Queue()
        self._sent_tokens = 0  # prompt tokens sent since the last report, which cannot know of them
        self._sent_sequences = 0
        self._heard = False  # within the present period of silence

    @property
    def legs(self) -> int:
        """Legs that are open here."""
        return len(self._legs)

    @property
    def usable(self) -> bool:
        """Whether new requests may be sent here."""
        return self.up and not self.load.draining

    def view(self, cached_tokens: int = 0) -> WorkerView:
        """As placement sees it."""
        return WorkerView(
            self.address,
            self.info.fingerprint,
            self.load.queued_tokens + self._sent_tokens,
            self.load.running + self.load.waiting + self._sent_sequences,
            cached_tokens,
        )

    def has_room(self, blocks: int, tails: int) -> bool:
        """Whether so many blocks and live tails are to be had, as last reported and less what was sent since."""
        load = self.load
        enough = load.slots_free + load.slots_evictable >= blocks
        return enough and load.tails_used + self._sent_sequences + tails <= load.tails_total

    def start(self, start: pb.Start, uncached_tokens: int, deliver: Deliver) -> Leg:
        """Send a leg; its events go to `deliver` until it is dropped."""
        self._legs[start.request, start.attempt] = deliver
        self._outgoing.put_nowait(pb.ToWorker(start=start))
        self._sent_tokens += uncached_tokens
        self._sent_sequences += start.n
        return Leg(self, start.request, start.attempt, start.leg)

    def drop(self, leg: Leg, cancel_attempt: int | None) -> None:
        """Hear no more of a leg. With `cancel_attempt`, the highest attempt of its request so far, end it there too."""
        open_here = self._legs.pop((leg.request, leg.attempt), None) is not None
        if open_here and cancel_attempt is not None:
            cancel = pb.Cancel(request=leg.request, attempt=cancel_attempt)
            self._outgoing.put_nowait(pb.ToWorker(cancel=cancel))

    async def run(self) -> None:
        """Connect, serve until the stream ends, pause, again; until cancelled."""
        pause, longest = _BACKOFF_SECONDS
        while True:
            try:
                await self._session()
                log.warning("%s worker %s ended its stream", self.role, self.address)
            except grpc.aio.AioRpcError as error:
                log.warning("%s worker %s: %s %s", self.role, self.address, error.code().name, error.details())
            except WrongWorker as error:
                log.error("%s", error)
            pause = _BACKOFF_SECONDS[0] if self.up else min(2 * pause, longest)
            self._lose()
            await asyncio.sleep(pause)

    async def _session(self) -> None:
        async with grpc.aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS) as channel:
            stub: Any = rpc.WorkerStub(channel)  # generated without types
            self._accept(await stub.Describe(pb.DescribeRequest(), timeout=self._timeout))
            reading = asyncio.create_task(self._read(stub))
            asking = asyncio.create_task(self._ask_when_silent(stub))
            try:
                done, _ = await asyncio.wait((reading, asking), return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                reading.cancel()
                asking.cancel()
                await asyncio.gather(reading, asking, return_exceptions=True)

    def _accept(self, info: pb.WorkerInfo) -> None:
        if info.role != self.role:
            raise WrongWorker(f"{self.address} is a {info.role} worker but is listed under {self.role}: move it")
        if info.instance != self.info.instance:
            self.prefixes.clear()
        self.info, self.load = info, info.load
        self._outgoing = asyncio.Queue()
        self._sent_tokens = self._sent_sequences = 0

    async def _read(self, stub: Any) -> None:
        async for message in stub.Serve(self._requests(self._outgoing)):
            self._heard = True
            if message.HasField("load"):
                self._report(message.load)
            if not self.up:
                self.up = True
                log.info("%s worker %s is up, instance %s", self.role, self.address, self.info.instance)
            for event in message.events:
                deliver = self._legs.get((event.request, event.attempt))
                if deliver is not None:
                    deliver(event)

    @staticmethod
    async def _requests(outgoing: asyncio.Queue[pb.ToWorker]) -> AsyncIterator[pb.ToWorker]:
        while True:
            yield await outgoing.get()

    async def _ask_when_silent(self, stub: Any) -> None:
        """Ends by an RPC error when a silent worker does not answer."""
        while True:
            self._heard = False
            await asyncio.sleep(_SILENCE_SECONDS)
            if not self._heard:
                self._report((await stub.Describe(pb.DescribeRequest(), timeout=self._timeout)).load)

    def _report(self, load: pb.Load) -> None:
        self.load = load
        self._sent_tokens = self._sent_sequences = 0

    def _lose(self) -> None:
        self.up = False
        legs, self._legs = self._legs, {}
        for deliver in legs.values():
            deliver(None)
