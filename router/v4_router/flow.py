"""Runs one prompt over the workers: performs what `advance` decides, and feeds it what happens.

Events of workers and timers arrive as notes in the inbox of the request, and new tokens leave as Emits. Legs are sent
and cancelled through WorkerLinks, which never block.
"""

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

from v4_core.blocks import BLOCK_TOKENS
from v4_core.tracing import Attributes
from v4_core.v1 import worker_pb2 as pb
from v4_router import actions, events
from v4_router.advance import advance
from v4_router.choice_group import ChoiceGroup, Prompt, RemoteLeg
from v4_router.errors import RouterError
from v4_router.fleet import Fleet, RoomRequest
from v4_router.generation import Emit, GenerationRequest, Inbox, Mark
from v4_router.pace import Awaited
from v4_router.start_message import start_message
from v4_router.timing import PromptTiming, Timing
from v4_router.workers import WorkerLink

_MOST_MARKS = 100  # kept for the trace, the latest ones; OpenTelemetry's own limit is 128 per span


@dataclass(slots=True)
class _OpenLeg:
    link: WorkerLink
    awaited: Awaited | None = None  # the first token of a PREFILL leg


class Flow:
    """All groups of one prompt, until every choice is finished or a RouterError ends the request."""

    def __init__(
        self, request: GenerationRequest, fleet: Fleet, timing: Timing, inbox: Inbox, *, first: int = 0
    ) -> None:
        """`inbox` calls this flow's notes; `first` is added to the choices of its Emits."""
        self.request = request
        self.prompt = Prompt(request)
        self.marks: deque[Mark] = deque(maxlen=_MOST_MARKS)
        self._first = first
        self._fleet = fleet
        self._now = timing.now
        self._timing = PromptTiming(timing, len(request.prompt) // 4)
        self._metrics = timing.metrics
        self._inbox = inbox
        self._groups: list[ChoiceGroup] = []
        self._legs: dict[RemoteLeg, _OpenLeg] = {}
        self._fingerprint: str | None = None  # of the workers whose tokens were emitted
        self._emits: list[Emit] = []
        self._error: RouterError | None = None

    @property
    def pair(self) -> tuple[str, str]:
        """The prefill and the decode worker of the latest legs; "-" = there was none."""
        return self.prompt.prefill, self.prompt.decode

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were found in a worker's cache."""
        return self.prompt.cached_tokens

    @property
    def reason(self) -> str:
        """The reason of the latest placement."""
        return self.prompt.reason

    @property
    def retries(self) -> int:
        """Legs that failed and were placed again."""
        return self.prompt.retries

    def facts(self) -> dict[str, Any]:
        """Workers, retries, and the transfer if there was one."""
        prompt, moved = self.prompt, self.prompt.adopted
        return {
            "prefill": prompt.prefill,
            "decode": prompt.decode,
            "reason": prompt.reason,
            "cached_tokens": prompt.cached_tokens,
            "retries": prompt.retries,
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
        """Places the prompt. Raises RouterError if no worker can take it."""
        self._enter(ChoiceGroup(self.prompt, self.request.id, tuple(range(self.request.n))))
        if self._error is not None:
            raise self._error

    def finish(self, choice: int) -> None:
        """The reader needs no more of this choice."""
        for group in self._groups:
            if choice in group.choices:
                self._run(group, events.ChoiceFinished(choice))
                return

    def close(self) -> None:
        """Cancels whatever still runs. Idempotent; may be called at any time."""
        for group in list(self._groups):
            self._run(group, events.Closed())
        for leg, open_leg in self._legs.items():  # left only if performing an action raised an exception
            open_leg.link.drop(leg.request, leg.attempt, leg.attempt)
        self._legs.clear()

    # Events

    def _react(self, group: ChoiceGroup, event: events.Event) -> list[Emit]:
        """Raises the error that ends the request, after every action for the event is performed."""
        self._run(group, event)
        return self._outcome()

    def _outcome(self) -> list[Emit]:
        if self._error is not None:
            raise self._error
        emits, self._emits = self._emits, []
        return emits

    def _granted(self, group: ChoiceGroup, worker: str) -> None:
        """Called when a worker has room, outside of this request's notes: a note then raises a failure."""
        self._run(group, events.RoomGranted(worker))
        if self._error is not None:
            self._inbox.post(self._outcome)

    def _receive(self, group: ChoiceGroup, leg: RemoteLeg, role: str, message: pb.Event | None) -> list[Emit]:
        recompute = self._fleet.policy.on_transfer_failure == "recompute"
        event = events.leg_event(leg, message, role, recompute=recompute)
        return [] if event is None else self._react(group, event)

    def _enter(self, group: ChoiceGroup) -> None:
        self._groups.append(group)
        self._run(group, events.Begin())

    def _run(self, group: ChoiceGroup, event: events.Event) -> None:
        for action in advance(group, event):
            self._perform(group, action)

    # Actions

    def _perform(self, group: ChoiceGroup, action: actions.Action) -> None:
        match action:
            case actions.EmitTokens():
                self._emit(action)
            case actions.Place():
                self._run(group, self._place(group, action))
            case actions.FindPartner():
                worker = self._fleet.partner(action.avoid, self._legs[action.prefill].link.kind)
                self._run(group, events.NoPartner() if worker is None else events.PartnerFound(worker))
            case actions.StartLeg():
                self._start(group, action)
            case actions.DropLeg():
                self._legs.pop(action.leg).link.drop(action.leg.request, action.leg.attempt, action.cancel)
            case actions.SetTimer():
                fired = events.TimerFired(action.timer, action.leg)
                self._inbox.post(partial(self._react, group, fired), action.seconds)
            case actions.WaitForRoom() | actions.HoldPlace() | actions.LeaveQueue():
                self._queue(group, action)
            case actions.Split() if self._error is None:
                self._metrics.migrations.inc()
                self._fleet.room_queue.inherit(group, action.group)
                self._enter(action.group)
            case actions.Split():
                pass  # the request has just failed
            case actions.Done():
                self._groups.remove(group)
            case actions.Fail():
                self._error = self._error or action.error or self._fleet.shortage()
            case _:
                self._record(group, action)

    def _place(self, group: ChoiceGroup, action: actions.Place) -> events.Event:
        placement = self._fleet.place(group.names, group.tokens, action.avoid, self._fingerprint)
        if placement is None:
            return events.NotPlaced()
        if placement.prefill is None:
            return events.Placed(placement)
        prefixes = self._fleet.links[placement.prefill].prefixes
        return events.Placed(placement, BLOCK_TOKENS * prefixes.match(group.names))

    def _start(self, group: ChoiceGroup, action: actions.StartLeg) -> None:
        leg = action.leg
        link = self._fleet.links[leg.worker]
        self._legs[leg] = open_leg = _OpenLeg(link)
        if action.placement is not None:
            self._timing.placed(self.prompt.reason, action.placement)
            if leg.phase == pb.PREFILL:
                link.prefixes.record(group.names)
                open_leg.awaited = self._timing.sent(action.placement, group.tokens, link.pace)
        self._mark("placed", leg, {"v4serve.reason": self.prompt.reason})
        link.placed_tokens += group.tokens * (1 if leg.phase == pb.PREFILL else len(group.choices))
        start = start_message(group, action, self._inbox.seconds_left())
        receive = partial(self._receive, group, leg, link.role)
        link.start(start, action.uncached_tokens, lambda message: self._inbox.post(partial(receive, message)))

    def _emit(self, action: actions.EmitTokens) -> None:
        if action.ids:
            open_leg = self._legs[action.leg]
            self._fingerprint = open_leg.link.info.fingerprint
            if open_leg.awaited is not None:
                self._timing.first_token(open_leg.awaited)
                open_leg.awaited = None
        self._emits.append(Emit(self._first + action.choice, action.ids, action.logprobs, action.finish))

    def _queue(self, group: ChoiceGroup, action: actions.WaitForRoom | actions.HoldPlace | actions.LeaveQueue) -> None:
        match action:
            case actions.WaitForRoom():
                request = RoomRequest(
                    group.tokens,
                    len(group.choices),
                    group.refused,
                    partial(self._granted, group),
                    lambda: self._inbox.post(partial(self._react, group, events.NoRoomLeft())),
                )
                self._fleet.wait_for_room(group, self._legs[action.prefill].link.kind, request)
            case actions.HoldPlace():
                self._fleet.stop_waiting(group, keep_place=True)
            case actions.LeaveQueue():
                self._fleet.stop_waiting(group, keep_place=False)

    def _record(self, group: ChoiceGroup, action: actions.Record) -> None:
        match action:
            case actions.LegBegan(leg, cached_tokens):
                self._timing.began(cached_tokens)
                if (awaited := self._legs[leg].awaited) is not None:
                    awaited.uncached = group.tokens - cached_tokens
            case actions.CorrectPrefix(leg, blocks):
                self._legs[leg].link.prefixes.correct(group.names, blocks)
            case actions.RecordTransfer(leg, adopted):
                self._metrics.transferred(adopted, self._legs[leg].link.endpoint.revision)
            case actions.RecordFailure(leg, reason, message):
                self._mark("failed", leg, {"error.type": _reason_name(reason), "v4serve.message": message})
            case actions.CountRetry(leg, reason):
                role = "prefill" if leg.phase == pb.PREFILL else "decode"
                self._metrics.retries.labels(role, _reason_name(reason)).inc()
            case actions.CountRecomputation():
                self._metrics.recomputations.inc()

    def _mark(self, name: str, leg: RemoteLeg, facts: Attributes) -> None:
        if self.request.trace.traceparent:
            which: Attributes = {
                "v4serve.request": leg.request,
                "v4serve.attempt": leg.attempt,
                "v4serve.leg": pb.Phase.Name(leg.phase).lower(),
                "v4serve.worker": leg.worker,
            }
            self.marks.append(Mark(name, self._now(), {**which, **facts}))


def _reason_name(reason: int) -> str:
    """What a failure's reason is called in metrics and traces."""
    return "lost" if reason == events.LOST else pb.Reason.Name(reason).lower()
