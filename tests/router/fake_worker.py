"""Workers without a model: the real protocol on a real port, and a next token that is a pure function.

The next token depends on the prompt, the output so far and the choice, so a continuation after any failure can be
checked token for token. `Caches` stands for the caches that move between workers.
"""

import asyncio
import hashlib
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count, takewhile
from typing import Any

import grpc
import grpc.aio

from v4_core.blocks import BLOCK_TOKENS, block_names, hit_limit
from v4_core.v1 import worker_pb2 as pb
from v4_core.v1 import worker_pb2_grpc as rpc
from v4_router.endpoints import WorkerEndpoint

VOCAB = 400
FIRST_ORDINARY = 7  # lower ids are special tokens
EOS = 1
MAX_MODEL_LEN = 200_000

Script = Callable[[int], list[int]]  # choice to its whole output


def next_token(prompt: list[int], output: list[int], choice: int) -> int:
    """Returns the only correct next token."""
    data = array("I", [*prompt, 0xFFFFFFFF, *output, choice]).tobytes()
    return FIRST_ORDINARY + int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "little") % (
        VOCAB - FIRST_ORDINARY
    )


def expected(prompt: list[int], tokens: int, choice: int = 0) -> list[int]:
    """Returns the correct output of so many tokens."""
    output: list[int] = []
    for _ in range(tokens):
        output.append(next_token(prompt, output, choice))
    return output


@dataclass
class Caches:
    """The leases of all fake workers of a test, by (address, lease); the future holds the first tokens."""

    held: dict[tuple[str, int], "asyncio.Future[None]"] = field(default_factory=dict)
    ends: dict[tuple[str, int], asyncio.Event] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: count(1))

    def hold(self, address: str, lease: int) -> "asyncio.Future[None]":
        """Begins a lease."""
        self.ends[address, lease] = asyncio.Event()
        self.held[address, lease] = asyncio.get_running_loop().create_future()
        return self.held[address, lease]

    async def ended(self, address: str, lease: int) -> None:
        """Waits until the cache was adopted or the lease ended otherwise."""
        await self.ends[address, lease].wait()

    def drop(self, address: str, lease: int) -> None:
        """Ends a lease."""
        cache = self.held.pop((address, lease), None)
        self.ends[address, lease].set()
        if cache is not None and not cache.done():
            cache.cancel()


class FakeWorker(rpc.WorkerServicer):
    """A fake worker. A test sets its attributes to control it, also while it runs."""

    def __init__(self, role: str, caches: Caches, max_model_len: int = MAX_MODEL_LEN) -> None:
        self.role = role
        self.caches = caches
        self.address = ""
        self.script: Script | None = None  # None = `next_token`, without an end
        self.rank = 0  # rank of the sampled token among the likeliest
        self.step_seconds = 0.0
        self.tails = 1000
        self.refusals: list[pb.Reason] = []  # the reasons with which the next legs fail
        self.refuse_always: pb.Reason | None = None
        self.may_refuse = asyncio.Event()  # a refusal is sent once it is set
        self.may_refuse.set()
        self.may_prefill = asyncio.Event()  # the first token is sent once it is set
        self.may_adopt = asyncio.Event()
        self.describes = asyncio.Event()
        self.describes.set()
        self.serves = asyncio.Event()
        self.serves.set()
        self.may_prefill.set()
        self.may_adopt.set()
        self.fail_at: tuple[int, pb.Reason] | None = None  # output tokens, reason
        self.migrate_at: int | None = None  # output tokens
        self.hands_back = asyncio.Event()  # hands back every running choice, as at the end of a drain
        self.hangs = False  # does not answer new legs
        self.duplicates = False  # sends every message twice
        self.repeats = 0  # earlier tokens that each message repeats
        self.first_tokens_late = 0.0  # seconds from the cache's readiness to prefill's first tokens
        self.gap_at: int | None = None  # number of output tokens after which one is not sent
        self.tokens_sent = 0
        self.cached_tokens = 0
        self.draining = False
        self.token = ""  # the secret that callers must send
        self.remembers = False  # whether prefixes of the tenant's earlier prompts are cached
        self._known: set[bytes] = set()
        self._leased: dict[str, tuple[int, Callable[..., None]]] = {}  # by request
        self.fingerprint = "one"
        self.tokenizer = ""
        self.max_model_len = max_model_len
        self.starts: list[pb.Start] = []
        self.cancels: list[pb.Cancel] = []
        self.running: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._server: Any = None
        self._instances = count(1)
        self.instance = ""

    async def start(self, port: int = 0) -> "FakeWorker":
        """Listens, after `kill` on the same port again."""
        self.instance = f"{self.role}-{next(self._instances)}"
        self._server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", 64 << 20), ("grpc.so_reuseport", 0)]
        )
        rpc.add_WorkerServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{port}"
        await self._server.start()
        return self

    async def kill(self) -> None:
        """Stops at once, and loses everything that it holds."""
        await self._server.stop(0)
        for task in list(self.running.values()):
            task.cancel()
        for address, lease in list(self.caches.held):
            if address == self.address:
                self.caches.drop(address, lease)

    async def restart(self) -> None:
        """Starts a new process at the same address."""
        await self.start(int(self.address.rpartition(":")[2]))

    def endpoint(self, **changes: Any) -> WorkerEndpoint:
        """Returns the endpoint as discovery reports it."""
        return WorkerEndpoint(self.address, self.role, **changes)  # type: ignore[arg-type]

    def expire(self, request: str) -> None:
        """End the request's lease: no decode worker pulled its cache in time."""
        lease, send = self._leased[request]
        send(failed=pb.Failed(reason=pb.TRANSFER, message="no decode worker pulled the cache"))
        self.caches.drop(self.address, lease)

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing is leased."""
        return not self.running and not any(address == self.address for address, _ in self.caches.held)

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.WorkerInfo:
        """Describes the worker."""
        await self._admit(context)
        await self.describes.wait()
        return pb.WorkerInfo(
            role=self.role,
            instance=self.instance,
            fingerprint=self.fingerprint,
            max_model_len=self.max_model_len,
            vocab_size=VOCAB,
            load=self._load(),
            tokenizer=self.tokenizer,
        )

    async def Serve(self, requests: AsyncIterator[pb.ToWorker], context: Any) -> AsyncIterator[pb.FromWorker]:
        """Serves the stream of one router."""
        await self._admit(context)
        out: asyncio.Queue[pb.Event] = asyncio.Queue()
        mine: set[tuple[str, int]] = set()
        await self.serves.wait()
        reading = asyncio.create_task(self._read(requests, out, mine))
        try:
            yield pb.FromWorker(load=self._load())
            while True:
                event = await out.get()
                for _ in range(1 + self.duplicates):
                    yield pb.FromWorker(events=[event], load=self._load())
        finally:
            reading.cancel()
            for key in mine & self.running.keys():
                self.running[key].cancel()

    async def _admit(self, context: Any) -> None:
        shown = dict(context.invocation_metadata()).get("authorization")
        if self.token and shown != f"Bearer {self.token}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the component token is wrong")

    def _cached(self, start: pb.Start) -> int:
        if not self.remembers:
            return self.cached_tokens
        names = block_names(start.prompt_ids, salt=start.tenant)
        found = sum(1 for _ in takewhile(self._known.__contains__, names))
        self._known.update(names)
        return min(BLOCK_TOKENS * found, hit_limit(len(start.prompt_ids) // 4))

    def _load(self) -> pb.Load:
        leases = sum(address == self.address for address, _ in self.caches.held)
        return pb.Load(
            running=len(self.running),
            draining=self.draining,
            leases=leases,
            slots_total=10_000,
            slots_free=10_000 - len(self.running),
            blocks_used=len(self.running),
            tails_total=self.tails,
            tails_used=len(self.running),
        )

    async def _read(self, requests: Any, out: "asyncio.Queue[pb.Event]", mine: set[tuple[str, int]]) -> None:
        async for message in requests:
            if message.HasField("start"):
                start = message.start
                self.starts.append(start)
                key = (start.request, start.attempt)
                mine.add(key)
                task = asyncio.create_task(self._leg(start, out))
                self.running[key] = task
                task.add_done_callback(partial(self._ended, key))
            else:
                self.cancels.append(message.cancel)
                for (request, attempt), task in list(self.running.items()):
                    if request == message.cancel.request and attempt <= message.cancel.attempt:
                        task.cancel()

    def _ended(self, key: tuple[str, int], task: "asyncio.Task[None]") -> None:
        if self.running.get(key) is task:
            del self.running[key]

    async def _leg(self, start: pb.Start, out: "asyncio.Queue[pb.Event]") -> None:
        def send(**event: Any) -> None:
            out.put_nowait(pb.Event(request=start.request, attempt=start.attempt, **event))

        reason = self.refusals.pop(0) if self.refusals else self.refuse_always
        reason = pb.DRAINING if self.draining else reason
        if self.hangs:
            await asyncio.Event().wait()
        if reason is not None:
            await self.may_refuse.wait()
            send(failed=pb.Failed(reason=reason, message=f"refused: {pb.Reason.Name(reason)}"))
        elif start.phase == pb.PREFILL:
            await self._prefill(start, send)
        else:
            await self._decode(start, send)

    async def _prefill(self, start: pb.Start, send: Callable[..., None]) -> None:
        lease = next(self.caches.numbers)
        cache = self.caches.hold(self.address, lease)
        self._leased[start.request] = (lease, send)
        try:
            send(started=pb.Started(cached_tokens=self._cached(start), lease=lease))
            await self.may_prefill.wait()
            if self.first_tokens_late:
                cache.set_result(None)
                await asyncio.sleep(self.first_tokens_late)
            if await self._steps(start, send, at_most=1):
                return
            if not cache.done():
                cache.set_result(None)
            await self.caches.ended(self.address, lease)
        finally:
            self.caches.drop(self.address, lease)

    async def _decode(self, start: pb.Start, send: Callable[..., None]) -> None:
        skip = 0
        if start.phase == pb.DECODE:
            skip = 1
            await self.may_adopt.wait()
            source = (start.source.address, start.source.lease)
            cache = self.caches.held.get(source)
            try:
                if cache is None:
                    raise asyncio.CancelledError
                await asyncio.shield(cache)
            except asyncio.CancelledError:
                if cache is None or cache.cancelled():
                    send(failed=pb.Failed(reason=pb.TRANSFER, message="the lease is gone"))
                    return
                raise
            self.caches.drop(*source)
            send(adopted=pb.Adopted(bytes=1000, seconds=0.5, wait_seconds=0.25, blocks_pulled=3, blocks_local=1))
        else:
            send(started=pb.Started(cached_tokens=self._cached(start)))
        await self._steps(start, send, skip=skip)

    async def _steps(
        self, start: pb.Start, send: Callable[..., None], skip: int = 0, at_most: int | None = None
    ) -> bool:
        """Sends the tokens of all choices, without the first `skip` ones. Returns whether all are finished."""
        prompt = array("I", start.prompt_ids).tolist()
        outputs = {start.first_choice + i: array("I", start.output_ids).tolist() for i in range(start.n)}
        live = set(outputs)
        step = 0
        while live and (at_most is None or step < at_most):
            if self.hands_back.is_set() and start.phase != pb.PREFILL and step >= skip:
                for choice in sorted(live):
                    send(tokens=pb.Tokens(choice=choice, start=len(outputs[choice]), finish=pb.MIGRATE))
                return True
            for choice in sorted(live):
                output = outputs[choice]
                if self.fail_at is not None and len(output) >= self.fail_at[0]:
                    send(failed=pb.Failed(reason=self.fail_at[1], message="failed on purpose"))
                    return True
                token = self._next(prompt, output, choice)
                output.append(token)
                finish = self._finish(start, output)
                if finish:
                    live.discard(choice)
                if not live:  # the load sent with the last token no longer counts this leg
                    self.running.pop((start.request, start.attempt), None)
                if step >= skip and len(output) != self.gap_at:
                    self.tokens_sent += 1
                    at = max(0, len(output) - 1 - self.repeats)
                    send(tokens=self._tokens(start, choice, at, output[at:], finish))
            step += 1
            await asyncio.sleep(self.step_seconds)
        return not live

    def _next(self, prompt: list[int], output: list[int], choice: int) -> int:
        if self.script is None:
            return next_token(prompt, output, choice)
        script = self.script(choice)
        return script[len(output)] if len(output) < len(script) else EOS

    def _finish(self, start: pb.Start, output: list[int]) -> pb.Finish:
        if (output[-1] == EOS and not start.ignore_eos) or output[-1] in start.stop_token_ids:
            return pb.STOP
        if len(output) >= start.max_tokens:
            return pb.LENGTH
        if start.phase != pb.PREFILL and len(output) == self.migrate_at:
            return pb.MIGRATE
        return pb.NOT_FINISHED

    def _tokens(self, start: pb.Start, choice: int, at: int, tokens: list[int], finish: pb.Finish) -> pb.Tokens:
        logprobs = []
        if start.sampling.HasField("logprobs"):
            for token in tokens:
                likeliest = token - self.rank
                top = list(range(likeliest, likeliest + start.sampling.logprobs))
                scores = [-0.5 - i for i in range(len(top))]
                logprobs.append(pb.TokenLogprobs(logprob=-0.5 - self.rank, top_ids=top, top_logprobs=scores))
        return pb.Tokens(choice=choice, start=at, ids=array("I", tokens).tobytes(), logprobs=logprobs, finish=finish)
