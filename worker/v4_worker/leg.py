"""A leg: one phase of one attempt of a request on this worker, from Start to its end. Belongs to the event loop.

A leg ends exactly once: finished, failed or cancelled. The engine then holds nothing for it any more. `WholeLeg` is
defined here because both roles serve it; the other legs are in the prefill and decode packages.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine

from v4_core.errors import RequestError
from v4_core.v1 import worker_pb2 as pb
from v4_engine.errors import CapacityError
from v4_engine.events import Admitted, Broken, Event, Token
from v4_engine.sequence import Key, Request
from v4_kvtransfer.leases import End, Lease
from v4_worker.context import LegContext
from v4_worker.messages import event_of, failed_event, token_event
from v4_worker.spans import LegSpans
from v4_worker.stream import RouterStream

log = logging.getLogger("v4serve.worker")

STOPPING = "this worker is shutting down: send the request to another one"


class Leg:
    """Submits the request to the engine, sends the engine's events to the router, and ends once."""

    waits = True  # whether the request still waits for admission
    first_span = "queue"  # name of the span from the leg's start

    def __init__(
        self,
        context: LegContext,
        request: Request,
        start: pb.Start,
        stream: RouterStream,
        on_closed: Callable[["Leg"], None],
    ) -> None:
        """`on_closed` is called once, when the leg ends."""
        self.context, self.request, self.start_message, self.stream = context, request, start, stream
        first = request.first_choice
        # Unfinished choices, each with the index of its next token.
        self.open = dict.fromkeys(range(first, first + request.n), len(request.output))
        self.streaming = False  # a first token was sent by this leg, or by prefill and this leg adopted the cache
        self.ended = False
        self.generated = 0  # tokens of all choices
        self._on_closed = on_closed
        self._arrived = time.monotonic()
        self._admitted: float | None = None  # time of admission, until the first token
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.spans = LegSpans(context.tracing, start, context.address)
        self.spans.enter(self.first_span, self._arrived)
        if start.deadline_ms:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(start.deadline_ms / 1000, self._expire)

    @property
    def key(self) -> Key:
        """(request, attempt, serial). The serial makes it unique even if a router sends the same Start twice."""
        return self.request.key

    def run(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Run a part of this leg as a task. An unexpected error is logged and fails the leg."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            request, attempt = self.key[:2]
            fields = {"id": request, "attempt": attempt}
            log.error("request %s, attempt %d", request, attempt, exc_info=error, extra={"fields": fields})
            self.fail(pb.INTERNAL, f"{type(error).__name__}: {error}")

    async def begin(self) -> None:
        """Submit the request to the engine. Fails the leg if the engine rejects it."""
        if self.ended:
            return
        try:
            accepted = await self.context.engine.call(lambda engine: engine.submit(self.request))
        except (RequestError, CapacityError) as error:
            self.fail(pb.INVALID, str(error))
            return
        if not accepted:
            limit = self.context.max_waiting
            self.fail(pb.OVERLOADED, f"{limit} requests are already waiting on this worker: try again later")

    def measure(self, event: Event, now: float) -> None:
        """Record the prompt's queue time and prefill time. `now` is a time of time.monotonic()."""
        if isinstance(event, Admitted):
            self._admitted = now
            self.context.metrics.prompt_queue.observe(now - self._arrived)
            self.spans.enter("prefill", now)
            self.spans.annotate({"prompt_tokens": len(self.request.prompt), "cached_tokens": event.cached})
        elif isinstance(event, Token):
            self.generated += 1
            if self._admitted is not None:
                self.context.metrics.prompt_prefill.observe(now - self._admitted)
                self._admitted = None
                self.prompt_computed(now)

    def prompt_computed(self, now: float) -> None:
        """Called when the whole prompt is computed and its first token is sampled."""
        self.spans.enter("decode", now)

    def on_event(self, event: Event) -> None:
        """Handle an event of the engine about this request."""
        if isinstance(event, Admitted):
            self.waits = False
            self.stream.put(event_of(self.request, started=pb.Started(cached_tokens=event.cached)))
        elif isinstance(event, Token):
            self.stream.put(token_event(event))
            self.mark_sent(event.choice, event.index, event.finish is not None)
        elif isinstance(event, Broken):
            self.fail(pb.INTERNAL, event.message)

    def mark_sent(self, choice: int, index: int, finished: bool) -> None:
        """Record that `choice` was sent up to the token at `index`. The leg ends when its last choice is finished."""
        self.streaming = True
        if finished:
            self.open.pop(choice, None)
        else:
            self.open[choice] = index + 1
        if not self.open:
            self.complete()

    def complete(self) -> None:
        """End the leg after all its choices have finished. The engine has already freed their memory."""
        self._end_span("finished")
        self.close()

    def being_read(self) -> bool:
        """Whether a decode worker is pulling this leg's complete cache."""
        return False

    def hand_back(self) -> None:
        """End the leg so that the router continues each open choice on another worker, after the tokens it received."""
        if not self.streaming:
            self.fail(pb.DRAINING, STOPPING)
            return
        for choice, index in self.open.items():
            tokens = pb.Tokens(choice=choice, start=index, finish=pb.MIGRATE)
            self.stream.put(event_of(self.request, tokens=tokens))
        self.stream.flush()
        self._end_span("handed_back")
        self.cancel()

    def fail(self, reason: pb.Reason, message: str) -> None:
        """End the leg, send the reason to the router, and free the engine's memory."""
        if not self.ended:
            self._end_span(pb.Reason.Name(reason).lower(), message)
            self.stream.put(failed_event(self.request, reason, message))
            self.stream.flush()
            self.cancel()

    def cancel(self) -> None:
        """End the leg without a message to the router, and free the engine's memory."""
        if not self.ended:
            self.close()
            self.free()

    def lease_ended(self, lease: Lease, end: End) -> None:
        """Called when a lease of this request ends."""

    def free(self) -> None:
        """Free the engine's memory of this leg."""
        self.context.engine.post(lambda engine: engine.drop(self.key))

    def close(self) -> None:
        """Mark the leg as ended and forget it. Does not free the engine's memory."""
        self.ended = True
        self._end_span("cancelled")
        if self._timer is not None:
            self._timer.cancel()
        self._on_closed(self)

    def _end_span(self, how: str, failure: str = "") -> None:
        """End the present span, if it has not ended: the first call decides how the leg ended."""
        self.spans.annotate({"generated_tokens": self.generated})
        self.spans.end(how, time.monotonic(), failure)

    def _expire(self) -> None:
        self.fail(pb.DEADLINE, f"not finished within {self.start_message.deadline_ms / 1000:g} s")


class WholeLeg(Leg):
    """Computes the prompt and the output on this worker."""
