"""One prompt's way over the workers: legs, attempts, retries, migration. No I/O and no clock of its own.

Events of workers come in as calls, new tokens go out as Emits, legs are sent and cancelled through WorkerLinks, which
never block. The choices of a prompt move together as one *part* until a decode worker is lost after tokens were sent;
then each unfinished choice goes on alone, as a new request that carries its tokens so far. Tokens already emitted never
change: every Tokens event says where it starts, what is known already is dropped, a gap is an internal error.
"""

from collections import deque
from functools import partial
from typing import Any

from v4_core.blocks import BLOCK_TOKENS, block_names, pack_ids, unpack_ids
from v4_core.tracing import Attributes
from v4_core.v1 import worker_pb2 as pb
from v4_router.errors import InternalError, RouterError, Unavailable, of_reason
from v4_router.fleet import Fleet
from v4_router.generation import Emit, Generation, Inbox, Mark
from v4_router.metrics import RETRY
from v4_router.parts import Choice, Part
from v4_router.timing import PromptTiming, Timing
from v4_router.workers import Leg

MAX_TRIES = 6  # of one part in a row without a new token
# When nobody can take a request whose tokens were already sent: first and longest pause, and all of them together.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 2.0
_PATIENCE_SECONDS = 60.0
_ROOM_SECONDS = 0.05  # between two looks for room on a decode worker, while the cache waits in prefill's pool
_LAST_WORD_SECONDS = 0.2  # for prefill's tokens to arrive when its lease has ended under a pull

_MOST_MARKS = 100  # kept for the trace, the latest; OpenTelemetry's own limit is 128 a span

LOST = -1  # beside pb.Reason: the worker's stream ended
_FINISH = {pb.STOP: "stop", pb.LENGTH: "length"}


class Flow:
    """All attempts for one prompt, until every choice is finished or a RouterError ends it."""

    def __init__(self, job: Generation, fleet: Fleet, timing: Timing, inbox: Inbox, *, first: int = 0) -> None:
        """`inbox` brings this flow's notes back to whoever reads it; `first` is added to the choices of its Emits."""
        self.job = job
        self._first = first
        self.cached_tokens = 0  # prompt tokens that were not computed again, as prefill said
        self.adopted: pb.Adopted | None = None
        self.retries = 0
        self.pair = ("-", "-")  # prefill and decode that serve, or served last; "-" = none was given a leg
        self.reason = ""  # of the last placement
        self.marks: deque[Mark] = deque(maxlen=_MOST_MARKS)
        self._fleet = fleet
        self._now = timing.now
        self._timing = PromptTiming(timing, len(job.prompt) // 4)
        self._metrics = timing.metrics
        self._inbox = inbox
        self._choices = [Choice() for _ in range(job.n)]
        self._parts: list[Part] = []
        self._fingerprint: str | None = None
        self._moves = 0
        self._last: RouterError | None = None
        self._full: RouterError | None = None

    @property
    def done(self) -> bool:
        """Every choice is finished."""
        return all(choice.finished for choice in self._choices)

    @property
    def emitted(self) -> bool:
        """A token was emitted."""
        return any(choice.ids for choice in self._choices)

    def facts(self) -> dict[str, Any]:
        """What happened on the way: workers, retries, and the transfer if there was one."""
        moved = self.adopted
        return {
            "prefill": self.pair[0],
            "decode": self.pair[1],
            "reason": self.reason,
            "cached_tokens": self.cached_tokens,
            "retries": self.retries,
            "transfer": moved
            and {
                "bytes": moved.bytes,
                "seconds": moved.seconds,
                "wait_seconds": moved.wait_seconds,
                "blocks_pulled": moved.blocks_pulled,
                "blocks_local": moved.blocks_local,
            },
        }

    def begin(self) -> None:
        """Place the prompt. Raises RouterError if nobody can take it."""
        self._enter(Part(self.job.id, tuple(range(self.job.n))))

    def finish(self, choice: int) -> None:
        """The reader needs no more of this choice."""
        self._choices[choice].finished = True
        for part in self._parts:
            if choice in part.choices and self._over(part):
                self._leave(part)
                return

    def close(self) -> None:
        """Cancel whatever still runs; may be called at any time and again."""
        for part in list(self._parts):
            self._leave(part)

    # Placing and starting

    def _enter(self, part: Part) -> None:
        output = self._choices[part.choices[0]].ids[: part.base]
        part.names = block_names(self.job.prompt + pack_ids(output), salt=self.job.tenant)
        self._parts.append(part)
        self._place(part)

    def _place(self, part: Part) -> None:
        """A new attempt from the prompt on."""
        tokens = len(self.job.prompt) // 4 + part.base
        placement = self._fleet.place(part.names, tokens, part.refused | part.failed, self._fingerprint)
        if placement is None and part.failed:
            part.failed.clear()  # nobody else is left: they may do better now
            placement = self._fleet.place(part.names, tokens, part.refused, self._fingerprint)
        if placement is None:
            self._wait(part)
            return
        part.attempt += 1
        part.adopted = False
        part.waits = False  # until there is a cache again: who has one now goes ahead, the place in the line stays
        part.lease = 0
        self.reason = RETRY if part.tries or self._moves else placement.reason
        self._timing.placed(self.reason, placement)
        if placement.prefill is None:
            self.pair = ("-", placement.decode)
            part.decode = self._start(part, placement.decode, pb.WHOLE, tokens)
            return
        self.pair = (placement.prefill, self.pair[1])  # decode is chosen when there is a cache to take over
        link = self._fleet.links[placement.prefill]
        part.cached_guess = BLOCK_TOKENS * link.prefixes.match(part.names)
        link.prefixes.record(part.names)
        part.awaited = self._timing.sent(placement, tokens, link.pace)
        part.prefill = self._start(part, placement.prefill, pb.PREFILL, max(0, tokens - part.cached_guess))

    def _pull(self, part: Part) -> None:
        """Have a decode worker take over what prefill computes; all again if there is none for it.

        Chosen now, not when the prompt was placed: of prompts placed together each sees where the others went.
        """
        if part.prefill is None:
            raise InternalError("a cache without a prefill worker was to be pulled")
        target = self._fleet.partner(part.refused | part.failed, part.prefill.link.kind)
        if target is None:
            self._count(part)
            self._restart(part)
            return
        self._take_over(part, part.prefill, target)

    def _take_over(self, part: Part, prefill: Leg, target: str) -> None:
        self.pair = (prefill.link.address, target)
        part.decode = self._start(part, target, pb.DECODE, 0)

    def _wait_for_room(self, part: Part, prefill: Leg) -> None:
        """Decode workers are full: the cache waits where it is, and is offered again in its turn, when one has room.

        Bounded by the request's deadline; and should the lease expire meanwhile, the prompt is cached where it was.
        """
        part.waits = True
        self._fleet.line.setdefault(self, None)
        self._inbox.post(partial(self._look_for_room, part, prefill), _ROOM_SECONDS)

    def _look_for_room(self, part: Part, prefill: Leg) -> list[Emit]:
        if part not in self._parts or part.prefill is not prefill or part.decode is not None:
            return []
        kind = prefill.link.kind
        tokens = len(self.job.prompt) // 4 + part.base
        first = next(flow for flow in self._fleet.line if flow.looks_for_room) is self
        target = self._fleet.room(tokens, len(part.choices), kind) if first else None
        if target is None and self._fleet.partner(part.refused, kind) is not None:
            self._inbox.post(partial(self._look_for_room, part, prefill), _ROOM_SECONDS)
            return []
        if target is None:
            self._pull(part)
        else:
            self._take_over(part, prefill, target)
        return []

    @property
    def looks_for_room(self) -> bool:
        """Whether a cache of this flow waits for a decode worker."""
        return any(part.waits and part.prefill is not None and part.decode is None for part in self._parts)

    def _offer(self, part: Part, prefill: Leg) -> list[Emit]:
        if part in self._parts and part.prefill is prefill and part.decode is None:
            self._pull(part)
        return []

    def _out_of_line(self, part: Part) -> None:
        part.waits = False
        if not any(p.waits for p in self._parts):
            self._fleet.line.pop(self, None)

    def _start(self, part: Part, address: str, kind: pb.Phase, uncached_tokens: int) -> Leg:
        job = self.job
        start = pb.Start(
            request=part.request,
            attempt=part.attempt,
            phase=kind,
            prompt_ids=job.prompt,
            output_ids=pack_ids(self._choices[part.choices[0]].ids[: part.base]),
            n=len(part.choices),
            first_choice=part.choices[0],
            max_tokens=job.max_tokens,
            ignore_eos=job.ignore_eos,
            stop_token_ids=job.stop_token_ids,
            sampling=job.sampling.to_proto(),
            tenant=job.tenant,
            deadline_ms=max(1, int(1000 * self._inbox.seconds_left())),
            traceparent=job.trace.traceparent,
            tracestate=job.trace.tracestate,
        )
        if kind == pb.DECODE and part.prefill is not None:
            start.source.address = part.prefill.link.address
            start.source.lease = part.lease
        key = (part.request, part.attempt, kind)
        self._mark("placed", address, key, {"v4serve.reason": self.reason})
        link = self._fleet.links[address]
        link.placed_tokens += (len(job.prompt) // 4 + part.base) * (1 if kind == pb.PREFILL else start.n)
        return link.start(start, uncached_tokens, lambda event: self._inbox.post(partial(self._hear, part, key, event)))

    # Events

    def _hear(self, part: Part, key: tuple[str, int, int], event: pb.Event | None) -> list[Emit]:
        leg = part.prefill if key[2] == pb.PREFILL else part.decode
        if leg is None or (leg.request, leg.attempt, leg.kind) != key:
            return []  # of a leg that was given up
        if event is None:
            self._failed(part, leg, LOST, f"{leg.link.role} worker {leg.link.address} was lost")
            return []
        match event.WhichOneof("event"):
            case "tokens":
                return self._tokens(part, leg, event.tokens)
            case "started":
                self._started(part, leg, event.started)
            case "adopted":
                part.adopted = True
                self._out_of_line(part)
                self.adopted = event.adopted
                self._metrics.transferred(event.adopted, leg.link.endpoint.revision)
            case "failed":
                self._failed(part, leg, event.failed.reason, event.failed.message)
        return []

    def _started(self, part: Part, leg: Leg, started: pb.Started) -> None:
        if leg.kind == pb.DECODE:
            return
        self._timing.began(started.cached_tokens)
        if not self.emitted:
            self.cached_tokens = started.cached_tokens
        if leg.kind == pb.PREFILL:
            if part.awaited is not None:
                part.awaited.uncached = len(self.job.prompt) // 4 + part.base - started.cached_tokens
            if started.cached_tokens < part.cached_guess:
                leg.link.prefixes.correct(part.names, started.cached_tokens // BLOCK_TOKENS)
            part.lease = started.lease
            if part.decode is None and self.job.max_tokens - part.base > 1:  # else prefill's own token is the last
                self._pull(part)

    def _tokens(self, part: Part, leg: Leg, tokens: pb.Tokens) -> list[Emit]:
        if tokens.choice >= len(self._choices):
            raise InternalError(f"a worker sent tokens of choice {tokens.choice}, which was not asked for")
        choice = self._choices[tokens.choice]
        if choice.finished or tokens.choice not in part.choices:
            return []
        known = len(choice.ids) - tokens.start
        if known < 0:
            if leg.kind == pb.DECODE and len(choice.ids) == part.base:
                choice.early.append(tokens)  # prefill's first token is still on its way
                return []
            raise InternalError(f"tokens {len(choice.ids)} to {tokens.start} of a choice are missing")
        ids, logprobs = unpack_ids(tokens.ids), list(tokens.logprobs)
        if self.job.sampling.logprobs is not None and len(logprobs) != len(ids):
            raise InternalError("a worker sent tokens without their log-probabilities")
        if known > len(ids) or (known == len(ids) and not tokens.finish):
            return []
        emits = self._add(part, leg, tokens, ids[known:], logprobs[known:])
        early, choice.early = choice.early, []
        for later in early:
            if part.decode is not None:
                emits += self._tokens(part, part.decode, later)
        return emits

    def _add(
        self, part: Part, leg: Leg, tokens: pb.Tokens, ids: list[int], logprobs: list[pb.TokenLogprobs]
    ) -> list[Emit]:
        choice = self._choices[tokens.choice]
        choice.ids += ids
        if ids:
            self._fingerprint = leg.link.info.fingerprint
            if leg.kind != pb.PREFILL:
                part.moved_on()
            elif part.awaited is not None:
                self._timing.came(part.awaited)
                part.awaited = None
        if tokens.finish == pb.MIGRATE:
            self._give_back(part, leg, tokens.choice)
        elif tokens.finish:
            choice.finished = choice.ended = True
        if self._over(part):
            self._leave(part)
        finish = _FINISH.get(tokens.finish)
        return [Emit(self._first + tokens.choice, ids, logprobs, finish)] if ids or finish else []

    # Failures

    def _failed(self, part: Part, leg: Leg, reason: int, message: str) -> None:
        leg.link.drop(leg, None)
        key = (leg.request, leg.attempt, leg.kind)
        self._mark("failed", leg.link.address, key, {"error.type": _word(reason), "v4serve.message": message})
        if reason in (pb.INVALID, pb.DEADLINE):
            raise of_reason(reason, message)
        if leg is part.prefill:
            part.prefill = None
            if part.adopted and all(len(self._choices[c].ids) > part.base for c in part.choices):
                return  # decode has all that prefill had to give
        else:
            part.decode = None
        lapsed = part.waits and leg.kind == pb.PREFILL and reason == pb.TRANSFER  # its lease ended in the line
        if reason == pb.TRANSFER and not lapsed and self._fleet.policy.on_transfer_failure == "fail":
            raise of_reason(reason, message)
        live = part.prefill if not part.adopted else None
        if live is not None:
            part.attempt += 1  # of the next pull of the same cache
        if leg.kind == pb.DECODE and reason == pb.OVERLOADED and live is not None:
            self._wait_for_room(part, live)
            return
        if not lapsed:
            self._blame(part, leg, reason, message)
        if live is None:
            self._restart(part)
        elif reason == pb.TRANSFER:
            self._inbox.post(partial(self._offer, part, live), _LAST_WORD_SECONDS)
        else:
            self._pull(part)

    def _mark(self, name: str, worker: str, key: tuple[str, int, pb.Phase], facts: Attributes) -> None:
        if self.job.trace.traceparent:
            request, attempt, kind = key
            which: Attributes = {
                "v4serve.request": request,
                "v4serve.attempt": attempt,
                "v4serve.leg": pb.Phase.Name(kind).lower(),
                "v4serve.worker": worker,
            }
            self.marks.append(Mark(name, self._now(), {**which, **facts}))

    def _blame(self, part: Part, leg: Leg, reason: int, message: str) -> None:
        self.retries += 1
        self._metrics.retries.labels(leg.link.role, _word(reason)).inc()
        self._last = Unavailable(message) if reason == LOST else of_reason(reason, message)
        if reason == pb.OVERLOADED:
            self._full = self._last
        hard = reason in (pb.OVERLOADED, pb.DRAINING, pb.INTERNAL)
        (part.refused if hard else part.failed).add(leg.link.address)
        self._count(part)

    def _count(self, part: Part) -> None:
        """One more try: every way back to a placement comes through here or through a pause, so that it has an end."""
        part.tries += 1
        if part.tries > MAX_TRIES:
            raise self._final()

    def _final(self) -> RouterError:
        return self._full or self._last or self._fleet.shortage()

    def _restart(self, part: Part) -> None:
        """Compute again from the prompt, and from each choice's tokens so far if it has any."""
        self._release(part)
        for c in part.choices:
            self._choices[c].early.clear()
        self._metrics.recomputations.inc()
        if all(len(self._choices[c].ids) == part.base for c in part.choices):
            self._place(part)
            return
        self._parts.remove(part)
        for c in part.choices:
            if not self._choices[c].finished:
                self._move(part, c)

    def _move(self, part: Part, choice: int) -> None:
        """One choice goes on alone."""
        self._moves += 1
        self._metrics.migrations.inc()
        request = f"{self.job.id}.c{choice}.{self._moves}"
        base = len(self._choices[choice].ids)
        self._enter(part.alone(request, choice, base))

    def _give_back(self, part: Part, leg: Leg, choice: int) -> None:
        part.choices = tuple(c for c in part.choices if c != choice)
        part.refused.add(leg.link.address)
        self._move(part, choice)
        part.refused.discard(leg.link.address)

    def _wait(self, part: Part) -> None:
        """Nobody takes it now: the end before the first token, else a pause, since what was sent cannot be unsent."""
        if not self.emitted or part.waited >= _PATIENCE_SECONDS:
            raise self._final()
        pause = min(max(part.waited, _PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        part.waited += pause
        part.refused.clear()
        part.failed.clear()
        self._inbox.post(partial(self._again, part), pause)

    def _again(self, part: Part) -> list[Emit]:
        if part in self._parts:
            self._place(part)
        return []

    # Ends

    def _over(self, part: Part) -> bool:
        return all(self._choices[c].finished for c in part.choices)

    def _leave(self, part: Part) -> None:
        self._release(part)
        self._out_of_line(part)
        if part in self._parts:
            self._parts.remove(part)

    def _release(self, part: Part) -> None:
        """Drop both legs, and cancel them unless nothing of them is left on the worker."""
        prefill, decode = part.prefill, part.decode
        part.prefill = part.decode = None
        ended = all(self._choices[c].ended for c in part.choices)
        if prefill is not None:
            prefill.link.drop(prefill, None if part.adopted else part.attempt)
        if decode is not None:
            complete = ended and (part.adopted or decode.kind == pb.WHOLE)
            decode.link.drop(decode, None if complete else part.attempt)


def _word(reason: int) -> str:
    """What a failure's reason is called in metrics and traces."""
    return "lost" if reason == LOST else pb.Reason.Name(reason).lower()
