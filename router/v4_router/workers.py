"""The router's connection to one worker: keeps one bidirectional stream up and dispatches the worker's events.

Knows endpoints, streams and load; of a request it knows only (request, attempt). A worker is up from the first message
of its stream, which holds its load, until the stream ends. The end of the stream also ends every leg that was started
on the worker: each open leg then receives None.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from v4_core.blocks import BLOCK_TOKENS
from v4_core.token import TokenFile, metadata
from v4_core.v1 import worker_pb2 as pb
from v4_core.v1 import worker_pb2_grpc as rpc
from v4_router.endpoints import WorkerEndpoint
from v4_router.pace import Pace
from v4_router.placement import WorkerView
from v4_router.prefix_index import PrefixIndex

log = logging.getLogger(__name__)

Deliver = Callable[[pb.Event | None], None]

MESSAGE_BYTES = 64 << 20  # a prompt of a million ids is 4 MB
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
)
_BACKOFF_SECONDS = (0.05, 2.0)  # first and longest pause before a new connection
_START_SECONDS = 120.0  # a new worker may be unreachable for so long before that is logged as a warning
_SILENCE_SECONDS = 2.0  # of a worker, after which it is asked for its load; its answer also proves that it is alive
# gRPC's text before the cause when a connection fails. It is removed: the router's message names the address already.
_NO_CONNECTION = re.compile(
    r"failed to connect to all addresses; last error: \w+: \S+: (?:Failed to connect to remote host: )?"
)


class WrongWorker(Exception):
    """What answers at an address is not a working worker of the expected role and model."""


def blocks_needed(tokens: int, choices: int) -> int:
    """Returns the block slots for a cache of so many tokens that so many choices continue."""
    return -(-tokens // BLOCK_TOKENS) + choices


class WorkerLink:
    """One worker. `run` keeps the stream up; the other methods never block, and belong to the same event loop."""

    def __init__(
        self,
        endpoint: WorkerEndpoint,
        connect_timeout_seconds: float,
        token: TokenFile | None = None,
        tokenizer: str = "",
    ) -> None:
        """`tokenizer`: digest of the router's tokenizer, which the worker's must equal if it reports one."""
        self.endpoint = endpoint  # the latest from discovery; its address, role and pod never change
        self.address = endpoint.address
        self.role = endpoint.role
        self.prefixes = PrefixIndex()
        self.pace = Pace()
        self.placed_tokens = 0  # prompt tokens of all legs since this worker was listed
        self.info = pb.WorkerInfo()
        self.load = pb.Load()
        self.up = False
        self.probed = False  # a probe passed on this process of the worker
        self.error = ""  # why the worker is not up, or why its latest probe failed
        self.on_change: Callable[[WorkerLink], None] = lambda link: None  # called after a report, a probe and a loss
        self._logged_level = logging.NOTSET  # of `error`
        self._warn_from = time.monotonic() + _START_SECONDS
        self._timeout = connect_timeout_seconds
        self._token = token
        self._tokenizer = tokenizer
        self._retired = False
        self._finished = asyncio.Event()  # retired, and no leg is left
        self._legs: dict[tuple[str, int], Deliver] = {}
        self._outgoing: asyncio.Queue[pb.ToWorker | None] = asyncio.Queue()  # None ends the stream
        # Sent since the latest load report, which does not include them yet.
        self._sent_tokens = 0
        self._sent_sequences = 0
        self._sent_blocks = 0
        self._refused = False  # the worker was full for a leg since its latest load report
        self._received = False  # a message, since `_watch` last looked

    @property
    def legs(self) -> int:
        """The number of open legs."""
        return len(self._legs)

    @property
    def open(self) -> bool:
        """Whether the worker takes new legs, according to itself and to discovery."""
        return self.up and self.endpoint.ready and not self.endpoint.leaving and not self.load.draining

    @property
    def usable(self) -> bool:
        """Whether requests may be sent to the worker."""
        return self.probed and self.open

    @property
    def kind(self) -> tuple[str, str]:
        """Revision and fingerprint: caches move only between workers with the same ones."""
        return self.endpoint.revision, self.info.fingerprint

    def prove(self) -> None:
        """Records that a probe passed, so that the worker gets requests."""
        self.probed = True
        self.on_change(self)

    def view(self, cached_tokens: int = 0) -> WorkerView:
        """Returns the worker as placement sees it."""
        return WorkerView(
            self.address,
            self.kind,
            self.load.queued_tokens + self._sent_tokens,
            self.load.running + self.load.waiting + self._sent_sequences,
            cached_tokens,
        )

    def has_room(self, blocks: int, tails: int) -> bool:
        """Whether so many blocks and live tails are free: those of the latest report, less what was sent since."""
        load = self.load
        enough = load.slots_free + load.slots_evictable >= blocks + self._sent_blocks
        return not self._refused and enough and load.tails_used + self._sent_sequences + tails <= load.tails_total

    def start(self, start: pb.Start, uncached_tokens: int, deliver: Deliver) -> None:
        """Sends a leg. Its events go to `deliver` until the leg is dropped, or None if the stream is lost."""
        self._legs[start.request, start.attempt] = deliver
        self._outgoing.put_nowait(pb.ToWorker(start=start))
        self._sent_tokens += uncached_tokens
        self._sent_sequences += start.n
        self._sent_blocks += blocks_needed((len(start.prompt_ids) + len(start.output_ids)) // 4, start.n)

    def drop(self, request: str, attempt: int, cancel_attempt: int | None) -> None:
        """Delivers no more events of a leg.

        With `cancel_attempt`, which is the highest attempt of the request so far, also cancels the leg on the worker.
        """
        was_open = self._legs.pop((request, attempt), None) is not None
        if was_open and cancel_attempt is not None:
            cancel = pb.Cancel(request=request, attempt=cancel_attempt)
            self._outgoing.put_nowait(pb.ToWorker(cancel=cancel))
        self._check_finished()

    def retire(self) -> None:
        """The worker is no longer listed: `run` returns after the open legs have ended."""
        self._retired = True
        self._check_finished()

    def _check_finished(self) -> None:
        if self._retired and not self._legs:
            self._finished.set()

    async def run(self) -> None:
        """Connects, serves until the stream ends, pauses, and connects again, until retired or cancelled."""
        pause, longest = _BACKOFF_SECONDS
        while not self._finished.is_set():
            try:
                await self._session()
                self._log_loss("ended its stream")
            except grpc.aio.AioRpcError as error:
                self._log_loss(_describe_error(error), may_start=error.code() is grpc.StatusCode.UNAVAILABLE)
            except WrongWorker as error:
                self._log_loss(str(error))
            pause = _BACKOFF_SECONDS[0] if self.up else min(2 * pause, longest)
            self._lose()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._finished.wait(), pause)

    def _log_loss(self, error: str, *, may_start: bool = False) -> None:
        """Logs why the worker is not up: once, not at every attempt.

        `may_start`: a new worker may still be starting, which is a warning only after _START_SECONDS.
        """
        error = f"{self.role} worker {self.address}: {error}"
        starting = may_start and not self.info.instance and time.monotonic() < self._warn_from
        level = logging.INFO if starting else logging.WARNING
        if (error, level) != (self.error, self._logged_level) and not self._finished.is_set():
            log.log(level, "%s", error)
        self._logged_level = level
        self.error = error

    async def _session(self) -> None:
        async with grpc.aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS) as channel:
            stub: Any = rpc.WorkerStub(channel)  # generated without types
            self._accept(await self._describe(stub))
            self._outgoing = asyncio.Queue()
            tasks = [asyncio.create_task(c) for c in (self._read(stub), self._watch(stub), self._end())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                self._outgoing.put_nowait(None)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self) -> None:
        await self._finished.wait()

    async def _describe(self, stub: Any) -> pb.WorkerInfo:
        info: pb.WorkerInfo = await stub.Describe(
            pb.DescribeRequest(), timeout=self._timeout, metadata=metadata(self._token)
        )
        return info

    def _accept(self, info: pb.WorkerInfo) -> None:
        if info.role != self.role:
            raise WrongWorker(f"is a {info.role} worker, but is listed as {self.role}: list it under its own role")
        if info.tokenizer and self._tokenizer and info.tokenizer != self._tokenizer:
            raise WrongWorker("has another tokenizer than this router: give both the same model")
        if info.instance != self.info.instance:
            self.prefixes.clear()
            self.pace = Pace()
            self.probed = False
        self.info = info
        self._report(info.load, fresh=True)

    async def _read(self, stub: Any) -> None:
        messages: AsyncIterator[pb.FromWorker]
        messages = stub.Serve(self._requests(self._outgoing), metadata=metadata(self._token))
        async for message in messages:
            self._received = True
            if not self.up:
                # Another process may have taken the address since Describe: ask the one that now streams.
                self._accept(await self._describe(stub))
                self.up = True
                self.error = ""
                log.info("%s worker %s is up, instance %s", self.role, self.address, self.info.instance)
            if message.HasField("load"):
                self._report(message.load)
            for event in message.events:
                # Messages repeat the latest load, which may be older than the refusal: only another load shows room.
                self._refused |= event.HasField("failed") and event.failed.reason == pb.OVERLOADED
                deliver = self._legs.get((event.request, event.attempt))
                if deliver is not None:
                    deliver(event)
            if message.HasField("load"):
                self.on_change(self)

    @staticmethod
    async def _requests(outgoing: asyncio.Queue[pb.ToWorker | None]) -> AsyncIterator[pb.ToWorker]:
        while (message := await outgoing.get()) is not None:
            yield message

    async def _watch(self, stub: Any) -> None:
        """Asks a silent worker for its load. Raises if the worker does not answer, or does not begin its stream."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            self._received = False
            await asyncio.sleep(_SILENCE_SECONDS)
            if not self.up and loop.time() - began >= self._timeout:
                raise WrongWorker(f"answers Describe, but sent nothing on its stream for {self._timeout:g} s")
            if not self._received:
                self._report((await self._describe(stub)).load, fresh=True)
                self.on_change(self)

    def _report(self, load: pb.Load, *, fresh: bool = False) -> None:
        """Takes in a load. `fresh`: it was taken for this report, even if it equals the latest one."""
        if fresh or load != self.load:
            self._refused = False
        self.load = load
        self._sent_tokens = self._sent_sequences = self._sent_blocks = 0

    def _lose(self) -> None:
        self.up = False
        legs, self._legs = self._legs, {}
        for deliver in legs.values():
            deliver(None)
        self._check_finished()
        self.on_change(self)


def _describe_error(error: grpc.aio.AioRpcError) -> str:
    """Returns the status code and the cause."""
    return f"{error.code().name}: {_NO_CONNECTION.sub('', error.details() or '', count=1)}"
