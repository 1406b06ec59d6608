"""One leg of one request on a worker, from Start to its end. All of it runs on the event loop.

A leg ends once: finished, failed or cancelled; then the engine holds nothing of it. `WholeLeg` is here since either
role can do it; the prefill and decode packages bring theirs.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from v4_core.errors import RequestError
from v4_core.v1 import worker_pb2 as pb
from v4_engine.errors import CapacityError
from v4_engine.events import Admitted, Broken, Event, Token
from v4_engine.sequence import Key, Request
from v4_kvtransfer.leases import End, Lease
from v4_worker.messages import event, failed, token_event
from v4_worker.spans import Phases
from v4_worker.stream import RouterStream

if TYPE_CHECKING:
    from v4_worker.worker import Worker


log = logging.getLogger("v4serve.worker")

STOPPING = "this worker is about to stop: place the request elsewhere"


class Leg:
    """What every leg does: submit, pass tokens on, end once."""

    waits = True  # for its turn: nothing was computed yet
    first_phase = "queue"

    def __init__(self, worker: "Worker", request: Request, start: pb.Start, stream: RouterStream) -> None:
        self.worker, self.request, self.start_message, self.stream = worker, request, start, stream
        first = request.first_choice
        self.open = dict.fromkeys(range(first, first + request.n), len(request.output))  # choice -> its next token
        self.streaming = False  # a token was sent, or the cache of one that prefill sent is here
        self.ended = False
        self.drawn = 0  # tokens, of all choices
        self._arrived = time.monotonic()
        self._admitted: float | None = None  # when, until the first token
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.phases = Phases(worker.tracing, start, worker.address)
        self.phases.enter(self.first_phase, self._arrived)
        if start.deadline_ms:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(start.deadline_ms / 1000, self._expire)

    @property
    def key(self) -> Key:
        """(request, attempt, serial): the engine's name of this leg, no other's even if a router repeats itself."""
        return self.request.key

    def run(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Run a part of this leg; an error that nobody expected ends the leg, and is not swallowed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)
        return task

    def _ran(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            request, attempt = self.key[:2]
            fields = {"id": request, "attempt": attempt}
            log.error("request %s, attempt %d", request, attempt, exc_info=error, extra={"fields": fields})
            self.fail(pb.INTERNAL, f"{type(error).__name__}: {error}")

    async def begin(self) -> None:
        """Give the request to the engine, or fail the leg."""
        if self.ended:
            return
        try:
            taken = await self.worker.engine.call(lambda engine: engine.submit(self.request))
        except (RequestError, CapacityError) as error:
            self.fail(pb.INVALID, str(error))
            return
        if not taken:
            limit = self.worker.engine_limits.max_waiting
            self.fail(pb.OVERLOADED, f"{limit} requests wait here already: try again later", limit)

    def measure(self, happened: Event, now: float) -> None:
        """Measure how long a prompt waits and is computed; `now` of time.monotonic()."""
        if isinstance(happened, Admitted):
            self._admitted = now
            self.worker.metrics.prompt_queue.observe(now - self._arrived)
            self.phases.enter("prefill", now)
            self.phases.note({"prompt_tokens": len(self.request.prompt), "cached_tokens": happened.cached})
        elif isinstance(happened, Token):
            self.drawn += 1
            if self._admitted is not None:
                self.worker.metrics.prompt_prefill.observe(now - self._admitted)
                self._admitted = None
                self.computed(now)

    def computed(self, now: float) -> None:
        """The prompt is, and its first token is drawn."""
        self.phases.enter("decode", now)

    def on_event(self, happened: Event) -> None:
        """What the engine says of this request."""
        if isinstance(happened, Admitted):
            self.waits = False
            self.stream.put(event(self.request, started=pb.Started(cached_tokens=happened.cached)))
        elif isinstance(happened, Token):
            self.stream.put(token_event(happened))
            self.passed(happened.choice, happened.index, happened.finish is not None)
        elif isinstance(happened, Broken):
            self.fail(pb.INTERNAL, happened.message)

    def passed(self, choice: int, index: int, finished: bool) -> None:
        """The router has a choice's output up to `index`. The leg ends with its last choice."""
        self.streaming = True
        if finished:
            self.open.pop(choice, None)
        else:
            self.open[choice] = index + 1
        if not self.open:
            self.complete()

    def complete(self) -> None:
        """Every choice has ended; the engine has freed each by itself."""
        self._end_phase("finished")
        self.close()

    def being_read(self) -> bool:
        """Whether a decode worker is about to have this leg's whole cache."""
        return False

    def hand_back(self) -> None:
        """End the leg so that the router continues elsewhere, each open choice behind the tokens that it has."""
        if not self.streaming:
            self.fail(pb.DRAINING, STOPPING)
            return
        for choice, index in self.open.items():
            tokens = pb.Tokens(choice=choice, start=index, finish=pb.MIGRATE)
            self.stream.put(event(self.request, tokens=tokens))
        self.stream.flush()
        self._end_phase("handed_back")
        self.cancel()

    def fail(self, reason: pb.Reason, message: str, queue_length: int = 0) -> None:
        """End the leg, telling the router why, and free what it holds."""
        if not self.ended:
            self._end_phase(pb.Reason.Name(reason).lower(), message)
            self.stream.put(failed(self.request, reason, message, queue_length))
            self.stream.flush()
            self.cancel()

    def cancel(self) -> None:
        """End the leg without a word and free what it holds."""
        if not self.ended:
            self.close()
            self.free()

    def lease_ended(self, lease: Lease, end: End) -> None:
        """A lease of this request's name ended."""

    def free(self) -> None:
        """Give the engine's memory back."""
        self.worker.drop(self.key)

    def close(self) -> None:
        """The leg is over here."""
        self.ended = True
        self._end_phase("cancelled")
        if self._timer is not None:
            self._timer.cancel()
        self.worker.legs.pop(self.key, None)

    def _end_phase(self, how: str, failure: str = "") -> None:
        """The first one that says how a leg ended is right."""
        self.phases.note({"generated_tokens": self.drawn})
        self.phases.end(how, time.monotonic(), failure)

    def _expire(self) -> None:
        self.fail(pb.DEADLINE, f"not finished within {self.start_message.deadline_ms / 1000:g} s")


class WholeLeg(Leg):
    """Prompt and output on this worker."""
