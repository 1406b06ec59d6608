"""One worker's engine: in each step it schedules, runs the forward pass, samples tokens and reports events.

The scheduler decides; the engine moves bytes as the scheduler says. An engine is single-threaded: all its methods are
called by the thread that runs the steps. It knows no network. Any engine can prefill, decode, or do both for a request.
"""

from itertools import islice

import torch

from v4_core.config import ModelConfig
from v4_core.errors import RequestError
from v4_engine.batch import Slice
from v4_engine.counts import Counts
from v4_engine.errors import CapacityError
from v4_engine.events import Admitted, Broken, Event, Parked, Progress, Token
from v4_engine.input_builder import InputBuilder
from v4_engine.model import V4Model
from v4_engine.options import SchedulerConfig
from v4_engine.params import Params
from v4_engine.pool import SlotPool
from v4_engine.sampler import Draw, Drawn, TokenHistory, penalised, sample
from v4_engine.schedule import Schedule, Work
from v4_engine.scheduler import Scheduler
from v4_engine.sequence import Finish, Key, Request, Sequence
from v4_engine.stores import CacheMemory


class Engine:
    """The model, its cache and its sequences."""

    def __init__(
        self,
        config: ModelConfig,
        params: Params,
        memory: CacheMemory,
        scheduling: SchedulerConfig,
        poison: bool = False,
    ) -> None:
        """With `poison`, memory that a sequence gets is filled with NaN, so that tests see reads of unwritten rows."""
        geometry = memory.geometry
        room = memory.slots - geometry.least_slots(0)
        if room < geometry.slots(scheduling.max_model_len):
            raise CapacityError(
                f"{memory.slots} cache slots hold one sequence of {max(0, room) * 256} tokens, but max_model_len is "
                f"{scheduling.max_model_len}: give the cache more memory or lower max_model_len"
            )
        tails = scheduling.max_sequences + scheduling.scratch_tails
        if memory.tails < tails:
            raise CapacityError(f"the cache has {memory.tails} tails, but sequences and captures need {tails}")
        self.config, self.geometry, self.memory = config, geometry, memory
        self.pool = SlotPool(memory.slots)
        self.scheduler = Scheduler(self.pool, scheduling, geometry.checkpoint_slots, config.num_layers, config.window)
        self._inputs = InputBuilder(geometry, memory.arena.device)
        self._model = V4Model(config, params, memory)
        self._poison = poison
        if poison:
            memory.poison()

    @property
    def counts(self) -> Counts:
        """What the engine has counted so far."""
        return self.pool.counts

    @property
    def busy(self) -> bool:
        """Whether a step would have work: False if every sequence here waits for memory."""
        return bool(self.scheduler.running) or bool(self.scheduler.waiting and not self.scheduler.stuck)

    def submit(self, request: Request) -> bool:
        """Queue a whole or prefill request. Returns False if the queue is full.

        Raises RequestError or CapacityError if the request can never be served.
        """
        self._check(request)
        if len(self.scheduler.waiting) >= self.scheduler.config.max_waiting:
            return False
        self.scheduler.add(request)
        return True

    def drop(self, key: Key) -> bool:
        """Free everything of a request at once, whatever its state. Returns False if there is no such request."""
        parked = self.scheduler.parked.get(key)
        found = self.scheduler.drop(key)
        if parked is not None and parked.damaged:
            self.pool.forget(parked.names)
        return found

    def reserve(self, request: Request) -> Sequence | None:
        """Allocate memory for a cache that arrives by transfer; the first `named` blocks are here already.

        Returns None if there is not enough memory now. Raises RequestError or CapacityError if the request can never be
        served.
        """
        self._check(request)
        return self.scheduler.reserve(request)

    def _check(self, request: Request) -> None:
        request.check(self.config.vocab_size)
        if self.scheduler.knows(request.key):
            raise RequestError(f"request {request.key[0]}, attempt {request.key[1]} is already on this worker")
        self.scheduler.check_fits(request)

    def block_arrived(self, key: Key, block: int) -> None:
        """Accept the complete block number `block` of a reserved request, which is in its slot."""
        self.scheduler.arrived(key, block)

    def adopt(self, key: Key, firsts: dict[int, tuple[int, Finish | None]]) -> None:
        """Decode a reserved request whose whole cache has arrived.

        `firsts` has the first token of each choice, and why the choice ended if that token ended it. Raises
        IntegrityError if blocks are missing.
        """
        sequence = self.scheduler.adopt(key)
        for member in (sequence, *self._fork(sequence)):
            token, finish = firsts[member.choice]
            member.append(token)
            if finish is not None:
                self.scheduler.finish(member)

    def step(self) -> list[Event]:
        """Run one step and return its events in order."""
        schedule, admitted = self.schedule()
        return [*admitted, *self.compute(schedule)]

    def schedule(self) -> tuple[Schedule, list[Event]]:
        """Return the schedule of one step and the admissions in it, which can be reported before the step is computed.

        The schedule must be passed to `compute` before the next call.
        """
        schedule = self.scheduler.schedule()
        return schedule, [Admitted(s.request, min(s.computed, len(s.request.prompt))) for s in schedule.admitted]

    @torch.inference_mode()
    def compute(self, schedule: Schedule) -> list[Event]:
        """Compute a schedule and return the events of the step in order, except its admissions."""
        events: list[Event] = []
        if self._poison:
            self._poison_tails(schedule)
        for restore in schedule.restores:  # before anything is written: the checkpoint may just have been evicted
            self.memory.unpack_tail(restore.slots, self.geometry.tail_spans(restore.boundary), restore.tail)
        if self._poison:
            self._poison_slots(schedule)
        if not schedule.work:
            return events
        logits = self._model.forward(self._inputs.build([_slice(work) for work in schedule.work]))
        self._record(schedule, events)
        ready = [(row, work.sequence) for row, work in enumerate(schedule.work) if work.sequence.remaining == 0]
        self._emit(logits, ready, events)
        return events

    def _record(self, schedule: Schedule, events: list[Event]) -> None:
        """Account for computed work: name complete blocks, keep checkpoints, report progress."""
        for work in schedule.work:
            sequence = work.sequence
            wanted = set(sequence.boundaries)
            self.scheduler.record(work)
            ends = [*work.captures]
            if sequence.computed in wanted:
                ends.append((sequence.computed, _tail(sequence)))
            for boundary, tail in ends:
                if slots := self.scheduler.allocator.checkpoint(sequence, boundary):
                    self._pack(tail, boundary, slots)
            at_boundary = sequence.computed % 256 == 0
            beyond_prompt = sequence.computed > len(sequence.request.prompt)
            exact = sequence.computed >= sequence.write_from  # inside a replay the state is not exact
            if at_boundary and sequence.rolling and beyond_prompt and exact:
                self._pack(_tail(sequence), sequence.computed, sequence.rolling)
                sequence.rolling_at = sequence.computed
            if sequence.request.phase == "prefill" and sequence.named > sequence.reported:
                sequence.reported = sequence.named
                events.append(Progress(sequence.request, tuple(sequence.slots), sequence.named))

    def _emit(self, logits: torch.Tensor, ready: list[tuple[int, Sequence]], events: list[Event]) -> None:
        """Sample the next token of every sequence in `ready`, whose tokens are all computed.

        `ready` has pairs (row of logits, sequence).
        """
        rows: list[int] = []
        draws: list[Draw] = []
        owners: list[tuple[list[Sequence], int]] = []
        for row, sequence in ready:
            members = [sequence, *self._fork(sequence)]
            own = self._draws(members)
            owners.append((members, len(own)))
            rows += [row] * len(own)
            draws += own
        if not draws:
            return
        sampled = iter(sample(logits[rows], draws))
        for members, count in owners:
            outs = list(islice(sampled, count))
            if members[0].request.phase == "prefill":
                self._emit_firsts(members[0], outs, events)
            else:
                for member, out in zip(members, outs, strict=True):
                    self._emit_token(member, out, events)

    def _draws(self, members: list[Sequence]) -> list[Draw]:
        """Return the draws of a sequence and its forks. A prefill sequence draws the first token of each choice."""
        request = members[0].request
        if request.phase == "prefill":
            drawn = [(request.first_choice + i, members[0]) for i in range(request.n)]
        else:
            drawn = [(member.choice, member) for member in members]
        return [Draw(request.sampling, len(m.ids), choice, self._history(m)) for choice, m in drawn]

    def _emit_firsts(self, sequence: Sequence, outs: list[Drawn | None], events: list[Event]) -> None:
        """Report the first tokens of a prefill request's choices and park its cache."""
        first_choice = sequence.request.first_choice
        firsts = [self._token(sequence, first_choice + i, out) for i, out in enumerate(outs) if out is not None]
        self.counts.drawn_tokens += len(firsts)
        if len(firsts) < len(outs):
            self._give_up(sequence, events)
            return
        events += firsts
        self.scheduler.park(sequence)
        events.append(Parked(sequence.request, tuple(sequence.slots), _tail(sequence), tuple(firsts)))

    def _emit_token(self, sequence: Sequence, out: Drawn | None, events: list[Event]) -> None:
        """Report a sequence's next token and append it. Does nothing if another choice's failure ended the request."""
        if out is None:
            self._give_up(sequence, events)
            return
        if sequence.tail is None:
            return
        token = self._token(sequence, sequence.choice, out)
        events.append(token)
        self.counts.drawn_tokens += 1
        sequence.append(out.id)
        if token.finish is not None:
            self.scheduler.finish(sequence)

    def _give_up(self, sequence: Sequence, events: list[Event]) -> None:
        """End a request for which the model gave NaN or infinity. None of its tokens, choices or blocks is trusted."""
        message = "the model's output is NaN or infinite: its weights or its state are damaged"
        if sequence.request.phase == "prefill":  # dropped by its owner, since a decode worker may be reading its cache
            self.scheduler.park(sequence)
            sequence.damaged = True
            events.append(Broken(sequence.request, message))
        elif self.scheduler.drop(sequence.request.key):
            self.pool.forget(sequence.names)
            events.append(Broken(sequence.request, message))

    def _history(self, sequence: Sequence) -> TokenHistory | None:
        """Return the token history that the request's penalties need, or None if it has none."""
        if sequence.history is None and penalised(sequence.request.sampling):
            prompt, device = len(sequence.request.prompt), self.memory.arena.device
            sequence.history = TokenHistory(sequence.ids, prompt, self.config.vocab_size, device)
        assert sequence.history is None or isinstance(sequence.history, TokenHistory)
        return sequence.history

    def _token(self, sequence: Sequence, choice: int, drawn: Drawn) -> Token:
        index, request = sequence.output_length, sequence.request
        finish: Finish | None = None
        if drawn.id in request.stop_ids:
            finish = "stop"
        elif index + 1 >= request.max_tokens or len(sequence.ids) + 1 >= self.scheduler.config.max_model_len:
            finish = "length"
        return Token(request, choice, index, drawn, finish)

    def _fork(self, sequence: Sequence) -> list[Sequence]:
        """Run the other choices of a sequence whose prompt is computed, with copies of its open block and its tail."""
        forks = self.scheduler.fork(sequence)
        for fork in forks:
            self.memory.copy_tail(_tail(sequence), _tail(fork))
            if sequence.computed % 256:
                block = sequence.computed // 256
                self.memory.copy_slot(sequence.slots[block], fork.slots[block])
        return forks

    def _pack(self, tail: int, boundary: int, slots: tuple[int, ...]) -> None:
        self.memory.pack_tail(tail, self.geometry.tail_spans(boundary), slots)

    def _poison_tails(self, schedule: Schedule) -> None:
        for sequence in schedule.started:
            for member in (sequence, *sequence.forks):
                self.memory.poison_tail(_tail(member))

    def _poison_slots(self, schedule: Schedule) -> None:
        for sequence in schedule.started:
            for member in (sequence, *sequence.forks):
                for slot in (*member.slots[member.named :], *member.rolling):
                    self.memory.poison_slot(slot)


def _slice(work: Work) -> Slice:
    s = work.sequence
    ids = s.ids[s.computed : s.computed + work.count]
    return Slice(ids, s.computed, _tail(s), s.slots, s.write_from, s.valid_from, work.captures)


def _tail(sequence: Sequence) -> int:
    assert sequence.tail is not None
    return sequence.tail
