"""A small model of workers, the fleet and the clock, for random walks over the state machine of `advance`.

Workers may refuse, fail, die, restart, repeat themselves and give choices back; leases may expire; messages of
different legs overtake each other; the reader may leave. Every check of the machine's actions is an assert here.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from v4_core.blocks import pack_ids
from v4_core.sampling import Sampling
from v4_core.v1 import worker_pb2 as pb
from v4_router import actions, events
from v4_router.advance import advance
from v4_router.choice_group import ChoiceGroup, Prompt, Queue, RemoteLeg
from v4_router.generation import GenerationRequest
from v4_router.placement import Placement

PREFILL, DECODE = ("P0", "P1"), ("D0", "D1", "D2")
_SOFT = (pb.OVERLOADED, pb.DRAINING, pb.TRANSFER, pb.INTERNAL, pb.UNKNOWN_REASON)


def token(choice: int, index: int) -> int:
    """The one right token."""
    return 1000 * choice + index


@dataclass
class Lease:
    """A prompt's cache on a prefill worker."""

    choices: tuple[int, ...]
    computed: bool = False
    end: str = ""  # pulled | gone


@dataclass(eq=False)
class ModelLeg:
    """A leg on its worker, and its messages that the router has not received yet."""

    leg: RemoteLeg
    group: ChoiceGroup
    base: int
    source: tuple[str, int] | None
    next: dict[int, int]  # open choices, and the index of their next token
    state: str = "new"  # new | running | ended
    lease: int = 0
    outbox: list[pb.Event | None] = field(default_factory=list)  # None: the stream was lost
    open: bool = True  # the router has not dropped it


class World:
    """Performs the actions of one prompt's groups against the model."""

    def __init__(self, chance: Random, *, hostile: bool = False) -> None:
        """`hostile`: decode workers refuse every leg for one reason, and perhaps prefill workers do too."""
        self.chance = chance
        self.hostile = chance.choice(_SOFT) if hostile else None
        self.spares_prefill = self.hostile != pb.OVERLOADED and chance.random() < 0.5
        self.refusals = chance.choice((0.05, 0.25))  # how often a new leg is refused
        self.slow = chance.random() < 0.5  # prefill's tokens are overtaken by the messages of others
        n, self.most = chance.randint(1, 3), chance.randint(1, 6)
        self.lengths = [chance.randint(1, self.most) for _ in range(n)]
        self.alive = set(PREFILL + DECODE)
        self.legs: list[ModelLeg] = []
        self.leases: dict[tuple[str, int], Lease] = {}
        self.started: set[tuple[str, int, int]] = set()
        self.later: list[tuple[ChoiceGroup, events.Event]] = []  # timers, and what reaches the group late
        self.queue: dict[ChoiceGroup, bool] = {}  # all with a place; True = waits now
        self.outputs: list[list[int]] = [[] for _ in range(n)]
        self.finished = [False] * n
        self.groups: list[ChoiceGroup] = []
        self.failed = self.closed = False
        self.seen: Counter[str] = Counter()  # transitions, to know that the walk reaches them
        request = GenerationRequest("r", pack_ids(range(300)), n, self.most, Sampling(), 0.0)
        self.prompt = Prompt(request)
        group = ChoiceGroup(self.prompt, "r", tuple(range(n)))
        self.groups.append(group)
        self.send(group, events.Begin())

    # The driver

    def send(self, group: ChoiceGroup, event: events.Event) -> None:
        """Feeds an event, and performs what it leads to. A Fail ends all groups, as a request's end does."""
        self._run(group, event)
        if self.failed:
            self.close()

    def close(self) -> None:
        """Ends all groups."""
        self.closed = True
        for group in list(self.groups):
            self._run(group, events.Closed())

    def _enter(self, group: ChoiceGroup) -> None:
        self.groups.append(group)
        self._run(group, events.Begin())

    def _run(self, group: ChoiceGroup, event: events.Event) -> None:
        was_over = group.over
        result = advance(group, event)
        self.seen.update(f"{type(event).__name__} -> {type(action).__name__}" for action in result)
        assert not (was_over and result), "a group that is over wants nothing"
        for number, action in enumerate(result):
            question = isinstance(action, actions.Place | actions.FindPartner)
            assert not question or number == len(result) - 1, "a question is the last action"
            self._perform(group, action)
        if not group.over and not self.failed:
            assert self._can_continue(group), f"nothing will ever happen to it after {event}"

    def _can_continue(self, group: ChoiceGroup) -> bool:
        """Liveness: the group has a leg, waits for room, or waits for a timer."""
        timer = any(who is group for who, _ in self.later)
        return bool(group.prefill or group.decode or timer or self.queue.get(group))

    def _perform(self, group: ChoiceGroup, action: actions.Action) -> None:
        match action:
            case actions.Place(avoid):
                self._run(group, self._place(avoid))
            case actions.FindPartner(prefill, avoid):
                assert self._leg(prefill).open
                found = [w for w in DECODE if w in self.alive and w not in avoid]
                self._run(group, events.PartnerFound(self.chance.choice(found)) if found else events.NoPartner())
            case actions.StartLeg():
                self._start(group, action)
            case actions.DropLeg(leg, cancel):
                self._drop(leg, cancel)
            case actions.EmitTokens():
                self._emit(action)
            case actions.SetTimer(timer, seconds, leg):
                assert 0 < seconds <= 2
                self.later.append((group, events.TimerFired(timer, leg)))
            case actions.WaitForRoom() | actions.HoldPlace() | actions.LeaveQueue():
                self._queue(group, action)
            case _:
                self._lead(group, action)

    def _queue(self, group: ChoiceGroup, action: actions.WaitForRoom | actions.HoldPlace | actions.LeaveQueue) -> None:
        match action:
            case actions.WaitForRoom(prefill):
                assert self._leg(prefill).open
                assert not self.queue.get(group), "it waits already"
                self.queue[group] = True
            case actions.HoldPlace():
                assert group in self.queue
                self.queue[group] = False
            case actions.LeaveQueue():
                del self.queue[group]

    def _lead(self, group: ChoiceGroup, action: actions.Action) -> None:
        match action:
            case actions.Split(child):
                assert not any(c in other.choices for other in self.groups if other is not group for c in child.choices)
                if not self.failed:
                    if group in self.queue:
                        self.queue[child] = False
                    assert (child.queue is Queue.OUT) == (child not in self.queue)
                    self._enter(child)
            case actions.Done():
                self.groups.remove(group)
            case actions.Fail():
                assert not self.failed
                self.failed = True
            case actions.LegBegan() | actions.CorrectPrefix() | actions.RecordTransfer():
                assert self._leg(action.leg).open

    def _place(self, avoid: frozenset[str]) -> events.Event:
        decode = [w for w in DECODE if w in self.alive and w not in avoid]
        prefill = [w for w in PREFILL if w in self.alive and w not in avoid]
        if not decode:
            return events.NotPlaced()
        alone = not prefill or self.chance.random() < 0.1
        source = None if alone else self.chance.choice(prefill)
        return events.Placed(Placement(source, self.chance.choice(decode), "least-queued"), 256)

    def _leg(self, leg: RemoteLeg) -> ModelLeg:
        (found,) = (m for m in self.legs if m.leg == leg)
        return found

    def _start(self, group: ChoiceGroup, action: actions.StartLeg) -> None:
        leg = action.leg
        key = (leg.request, leg.attempt, leg.phase)
        assert key not in self.started, "a leg is started once"
        assert all(attempt <= leg.attempt for request, attempt, _ in self.started if request == leg.request)
        assert leg.worker in self.alive
        self.started.add(key)
        source = None if action.source is None else (action.source.worker, action.lease)
        assert (source is not None) == (leg.phase == pb.DECODE)
        assert source is None or source in self.leases, "only a lease that the worker told is pulled"
        begun = dict.fromkeys(group.choices, group.base)
        self.legs.append(ModelLeg(leg, group, group.base, source, begun))

    def _drop(self, leg: RemoteLeg, cancel: int | None) -> None:
        model = self._leg(leg)
        assert model.open, "a leg is ended once"
        model.open = False
        if not self.chance.randrange(3):
            model.outbox.clear()  # else they are on their way already, and arrive after all
        if cancel is None:
            assert model.state == "ended", "what still runs on a worker is cancelled"
            return
        assert cancel >= leg.attempt
        for other in self.legs:
            if (other.leg.request, other.leg.worker) == (leg.request, leg.worker) and other.leg.attempt <= cancel:
                self._end(other)

    def _emit(self, action: actions.EmitTokens) -> None:
        output = self.outputs[action.choice]
        assert not self.finished[action.choice], "nothing follows the end of a choice"
        expected = [token(action.choice, len(output) + i) for i in range(len(action.ids))]
        assert action.ids == expected, "no token is skipped or sent twice"
        output += action.ids
        if action.finish:
            assert len(output) == self.lengths[action.choice]
            self.finished[action.choice] = True

    # The workers

    def _end(self, model: ModelLeg) -> None:
        model.state = "ended"
        lease = self.leases.get((model.leg.worker, model.lease))
        if model.leg.phase == pb.PREFILL and lease is not None and not lease.end:
            lease.end = "gone"

    def _put(self, model: ModelLeg, **event: object) -> None:
        message = pb.Event(request=model.leg.request, attempt=model.leg.attempt, **event)  # type: ignore[arg-type]
        model.outbox += [message] * (1 if self.fair or self.chance.random() < 0.9 else 2)

    def _fail(self, model: ModelLeg, reason: pb.Reason) -> None:
        self._put(model, failed=pb.Failed(reason=reason, message="on purpose"))
        self._end(model)

    def _send_tokens(self, model: ModelLeg, choice: int, count: int, finish: pb.Finish = pb.NOT_FINISHED) -> None:
        at = model.next[choice]
        stop = min(at + count, self.lengths[choice])
        repeats = 0 if self.fair else self.chance.choice((0, 0, 1, 2))
        begin = max(0, at - repeats)
        if stop == self.lengths[choice] and stop > at:
            finish = pb.LENGTH if stop == self.most else pb.STOP
        ids = pack_ids(token(choice, i) for i in range(begin, stop))
        self._put(model, tokens=pb.Tokens(choice=choice, start=begin, ids=ids, finish=finish))
        model.next[choice] = stop
        if finish:
            del model.next[choice]

    def work(self, model: ModelLeg) -> None:
        """One step of a leg on its worker."""
        chaos = not self.fair and self.chance.random()
        if model.state == "new":
            if self.hostile is not None and not (self.spares_prefill and model.leg.phase == pb.PREFILL):
                self._fail(model, self.hostile)
            elif chaos and chaos < self.refusals:
                rare = () if chaos > 0.01 else (pb.INVALID, pb.DEADLINE)
                full = (pb.OVERLOADED,) * len(_SOFT) if model.source else ()  # as often as all others
                self._fail(model, self.chance.choice(rare or _SOFT + full))
            else:
                self._admit(model)
        elif chaos and chaos < 0.06:
            self._fail(model, self.chance.choice(_SOFT))
        elif model.leg.phase == pb.PREFILL:
            self._prefill(model)
        elif chaos and chaos < 0.12:
            self._send_tokens(model, self.chance.choice(list(model.next)), 0, pb.MIGRATE)
            if not model.next:
                self._end(model)
        else:
            self._decode(model)

    def _admit(self, model: ModelLeg) -> None:
        if model.source is not None:
            self._adopt(model, self.leases[model.source])
            return
        if model.leg.phase == pb.PREFILL:
            model.lease = len(self.leases) + 1
            self.leases[model.leg.worker, model.lease] = Lease(tuple(model.next))
        started = pb.Started(cached_tokens=self.chance.choice((0, 256)), lease=model.lease)
        self._put(model, started=started)
        model.state = "running"

    def _adopt(self, model: ModelLeg, lease: Lease) -> None:
        if lease.end:
            self._fail(model, pb.TRANSFER)
        elif lease.computed:
            lease.end = "pulled"
            (source,) = (m for m in self.legs if (m.leg.worker, m.lease) == model.source)
            self._end(source)
            self._put(model, adopted=pb.Adopted(bytes=1))
            model.next = {c: model.base + 1 for c in model.next if self.lengths[c] > model.base + 1}
            model.state = "running" if model.next else "ended"

    def _prefill(self, model: ModelLeg) -> None:
        lease = self.leases[model.leg.worker, model.lease]
        if not lease.computed:
            for choice in list(model.next):
                self._send_tokens(model, choice, 1)
            lease.computed = True
            if not model.next:
                self._end(model)
        elif not self.fair and self.chance.random() < 0.2:
            self._fail(model, pb.TRANSFER)  # the lease expires

    def _decode(self, model: ModelLeg) -> None:
        for choice in list(model.next):
            self._send_tokens(model, choice, self.chance.randint(1, 2))
        if not model.next:
            self._end(model)

    def kill(self, worker: str) -> None:
        """The process ends; what it sent last may be lost."""
        self.alive.discard(worker)
        for model in self.legs:
            if model.leg.worker == worker:
                self._end(model)
                if model.open and None not in model.outbox:
                    del model.outbox[self.chance.choice((0, self.chance.randint(0, len(model.outbox)))) :]
                    model.outbox.append(None)

    # The walk

    fair = False

    def step(self) -> bool:
        """Lets one possible thing happen. Returns False if nothing is left to happen."""
        slow = self.slow and not self.fair and self.chance.random() < 0.95
        deliver = [m for m in self.legs if m.outbox and not (slow and self._first_tokens(m))]
        working = [m for m in self.legs if m.state != "ended" and self._can_work(m)]
        choices = [*("deliver" for _ in deliver), *("work" for _ in working), *("later" for _ in self.later)]
        if any(self.queue.values()):
            choices.append("room")
        if not self.fair:
            choices += ["kill", "kill", "restart", "reader"] if self.chance.random() < 0.3 else []
        if not choices:
            return slow
        match self.chance.choice(choices):
            case "deliver":
                self._deliver(self.chance.choice(deliver))
            case "work":
                self.work(self.chance.choice(working))
            case "later":
                self.send(*self.later.pop(self.chance.randrange(len(self.later))))
            case "room":
                self._room()
            case "kill":
                talking = [m.leg.worker for m in self.legs if m.outbox]  # what they sent last may be lost
                one = (self.chance.choice(talking or PREFILL + DECODE),)
                for worker in self.chance.choice((one, DECODE)):
                    self.kill(worker)
            case "restart":
                self.alive.add(self.chance.choice(PREFILL + DECODE))
            case "reader":
                self._reader()
        return True

    @staticmethod
    def _first_tokens(model: ModelLeg) -> bool:
        message = model.outbox[0]
        return model.leg.phase == pb.PREFILL and message is not None and message.HasField("tokens")

    def _can_work(self, model: ModelLeg) -> bool:
        """Whether the worker has something to do; a pull waits for its prompt, and a finished prompt for its pull."""
        if not self.fair:
            return True
        if model.state == "new":
            lease = self.leases[model.source] if model.source else None
            return lease is None or bool(lease.end) or lease.computed
        return model.leg.phase != pb.PREFILL or not self.leases[model.leg.worker, model.lease].computed

    def _deliver(self, model: ModelLeg) -> None:
        event = events.leg_event(model.leg, model.outbox.pop(0), "some")
        assert event is not None
        self.send(model.group, event)

    def _room(self) -> None:
        group = next(group for group, waits in self.queue.items() if waits)
        if able := [w for w in DECODE if w in self.alive]:
            self.queue[group] = False  # as the fleet does before it grants room
            self.send(group, events.RoomGranted(self.chance.choice(able)))
        else:
            self.later.append((group, events.NoRoomLeft()))

    def _reader(self) -> None:
        choice = self.chance.randrange(len(self.outputs))
        for group in self.groups:
            if choice in group.choices:
                self.finished[choice] = True
                self.send(group, events.ChoiceFinished(choice))
                return

    def check_end(self) -> None:
        """After the last group: whatever was begun is ended, and nothing is left anywhere."""
        assert not self.groups
        assert all(not model.open for model in self.legs), "every leg is ended"
        assert all(model.state == "ended" for model in self.legs), "nothing runs on a worker"
        assert all(lease.end for lease in self.leases.values()), "every lease is pulled or cancelled"
        assert not self.queue, "nobody is left in the queue"
        if not self.closed:
            assert all(self.finished), "every choice is finished"
