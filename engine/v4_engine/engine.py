"""One worker's engine: schedule, run, emit. Moves bytes where the scheduler says, runs the forward, draws tokens.

Single-threaded: everything here is called by the thread that steps. Knows no network; a worker turns its events into
messages. Either role can do the whole of a request.
"""

from dataclasses import dataclass

import torch

from v4_core.config import ModelConfig
from v4_core.errors import RequestError
from v4_engine.batch import Slice
from v4_engine.counts import Counts
from v4_engine.errors import CapacityError
from v4_engine.input_builder import InputBuilder
from v4_engine.model import V4Model
from v4_engine.params import Params
from v4_engine.pool import SlotPool
from v4_engine.sampler import Draw, Drawn, TokenHistory, penalised, sample
from v4_engine.schedule import Schedule
from v4_engine.scheduler import Scheduler, SchedulerConfig
from v4_engine.sequence import Finish, Key, Request, Sequence
from v4_engine.stores import CacheMemory


@dataclass(frozen=True)
class Admitted:
    """A request holds its memory; `cached` of its tokens are not computed again."""

    request: Request
    cached: int


@dataclass(frozen=True)
class Token:
    """A token of one choice; `index` counts the choice's output."""

    request: Request
    choice: int
    index: int
    drawn: Drawn
    finish: Finish | None


@dataclass(frozen=True)
class Progress:
    """A prefill leg has this many complete blocks, the leading ones of these slots."""

    request: Request
    slots: tuple[int, ...]
    complete: int


@dataclass(frozen=True)
class Parked:
    """A prefill leg is done: its cache stays in `slots` and `tail` until the request is dropped, as any prefill leg's,
    since somebody may be reading it."""

    request: Request
    slots: tuple[int, ...]
    tail: int
    firsts: tuple[Token, ...]


@dataclass(frozen=True)
class Broken:
    """A request was given up with all its choices: its state cannot be trusted. A prefill leg is to be dropped."""

    request: Request
    message: str


Event = Admitted | Token | Progress | Parked | Broken


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
        geometry = memory.geometry
        room = memory.slots - geometry.least_slots(0)
        if room < geometry.slots(scheduling.max_model_len):
            raise CapacityError(
                f"{memory.slots} cache slots hold sequences of {max(0, room) * 256} tokens, not of "
                f"{scheduling.max_model_len}: give the cache more memory or lower max_model_len"
            )
        if memory.tails < scheduling.max_sequences + scheduling.scratch_tails:
            raise CapacityError("the cache has fewer tails than sequences and captures need")
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
        """What was counted so far."""
        return self.pool.counts

    @property
    def busy(self) -> bool:
        """Whether a step would have something to do: not if all that waits waits for memory."""
        return bool(self.scheduler.running) or bool(self.scheduler.waiting and not self.scheduler.stuck)

    def submit(self, request: Request) -> bool:
        """Queue a whole or prefill request; False if too many wait. Raises RequestError, CapacityError."""
        self._check(request)
        if len(self.scheduler.waiting) >= self.scheduler.config.max_waiting:
            return False
        self.scheduler.add(request)
        return True

    def drop(self, key: Key) -> bool:
        """Free everything of a request, at once and in any state. False if there was nothing."""
        parked = self.scheduler.parked.get(key)
        found = self.scheduler.drop(key)
        if parked is not None and parked.damaged:
            self.pool.forget(parked.names)
        return found

    def reserve(self, request: Request) -> Sequence | None:
        """Memory for a cache that arrives by transfer (slots, tail, `named` blocks here already), or None.

        Raises RequestError, CapacityError if it can never be.
        """
        self._check(request)
        return self.scheduler.reserve(request)

    def _check(self, request: Request) -> None:
        vocab = self.config.vocab_size
        tokens = (*request.prompt, *request.output)
        if not request.prompt:
            raise RequestError("the prompt has no tokens")
        if not 0 <= min(tokens) <= max(tokens) < vocab:
            raise RequestError(f"the prompt has token ids outside the vocabulary of {vocab}")
        if any(not 0 <= token < vocab for token in request.sampling.logit_bias):
            raise RequestError(f"logit_bias names a token outside the vocabulary of {vocab}")
        if request.n < 1 or (request.output and request.n > 1):
            raise RequestError(f"n is {request.n}: at least 1, and 1 where there is output already")
        if request.max_tokens <= len(request.output):
            raise RequestError(f"max_tokens is {request.max_tokens}, the output has {len(request.output)} already")
        if self.scheduler.knows(request.key):
            raise RequestError(f"request {request.key[0]}, attempt {request.key[1]} is here already")
        self.scheduler.check_fits(request)

    def block_arrived(self, key: Key, block: int) -> None:
        """Complete block number `block` of a reserved request is in its slot."""
        self.scheduler.arrived(key, block)

    def adopt(self, key: Key, firsts: dict[int, tuple[int, Finish | None]]) -> None:
        """The cache of a reserved request is here whole; `firsts`: first token and end, if it is one, by choice.

        Raises IntegrityError if it is not.
        """
        sequence = self.scheduler.adopt(key)
        for member in (sequence, *self._fork(sequence)):
            token, finish = firsts[member.choice]
            member.append(token)
            if finish is not None:
                self.scheduler.finish(member)

    def step(self) -> list[Event]:
        """Run one step; its events in order."""
        schedule, admitted = self.schedule()
        return [*admitted, *self.compute(schedule)]

    def schedule(self) -> tuple[Schedule, list[Event]]:
        """Share out one step, which must be computed next, and say whom it admits, before that takes its time."""
        schedule = self.scheduler.schedule()
        return schedule, [Admitted(s.request, min(s.computed, len(s.request.prompt))) for s in schedule.admitted]

    @torch.inference_mode()
    def compute(self, schedule: Schedule) -> list[Event]:
        """Compute what was scheduled; its events in order."""
        events: list[Event] = []
        if self._poison:
            self._poison_tails(schedule)
        for restore in schedule.restores:  # before anything is written: a checkpoint may just have been evicted
            self._unpack(restore.slots, restore.tail, restore.boundary)
        if self._poison:
            self._poison_slots(schedule)
        if not schedule.work:
            return events
        slices = [
            Slice(
                s.ids[s.computed : s.computed + w.count],
                s.computed,
                _held(s),
                s.slots,
                s.write_from,
                s.valid_from,
                w.captures,
            )
            for w in schedule.work
            for s in (w.sequence,)
        ]
        logits = self._model.forward(self._inputs.build(slices))
        self._record(schedule, events)
        ready = [(row, w.sequence) for row, w in enumerate(schedule.work) if w.sequence.remaining == 0]
        self._emit(logits, ready, events)
        return events

    def _record(self, schedule: Schedule, events: list[Event]) -> None:
        for work in schedule.work:
            sequence = work.sequence
            wanted = set(sequence.boundaries)
            self.scheduler.record(work)
            ends = [*work.captures]
            if sequence.computed in wanted:
                ends.append((sequence.computed, _held(sequence)))
            for boundary, tail in ends:
                if slots := self.scheduler.allocator.checkpoint(sequence, boundary):
                    self._pack(tail, boundary, slots)
            at_boundary = sequence.computed % 256 == 0
            beyond_prompt = sequence.computed > len(sequence.request.prompt)
            exact = sequence.computed >= sequence.write_from  # inside a replay it is not
            if at_boundary and sequence.rolling and beyond_prompt and exact:
                self._pack(_held(sequence), sequence.computed, sequence.rolling)
                sequence.rolling_at = sequence.computed
            if sequence.request.phase == "prefill" and sequence.named > sequence.told:
                sequence.told = sequence.named
                events.append(Progress(sequence.request, tuple(sequence.slots), sequence.named))

    def _emit(self, logits: torch.Tensor, ready: list[tuple[int, Sequence]], events: list[Event]) -> None:
        """Draw a token for every sequence that has computed all it has, and move it on."""
        rows: list[int] = []
        draws: list[Draw] = []
        owners: list[list[Sequence]] = []
        for row, sequence in ready:
            request = sequence.request
            prefill = request.phase == "prefill"
            members = [sequence, *self._fork(sequence)]
            owners.append(members)
            choices = [request.first_choice + i for i in range(request.n)] if prefill else [m.choice for m in members]
            rows += [row] * len(choices)
            draws += [
                Draw(request.sampling, len(sequence.ids), choice, self._history(member))
                for choice, member in zip(choices, members * (request.n if prefill else 1), strict=True)
            ]
        if not draws:
            return
        drawn = iter(zip(draws, sample(logits[rows], draws), strict=True))
        for members in owners:
            sequence = members[0]
            if sequence.request.phase == "prefill":
                outs = [next(drawn) for _ in range(sequence.request.n)]
                firsts = [self._token(sequence, draw.choice, out) for draw, out in outs if out is not None]
                self.counts.drawn_tokens += len(firsts)
                if len(firsts) < len(outs):
                    self._give_up(sequence, events)
                else:
                    self._park(sequence, firsts, events)
                continue
            for member in members:
                _, out = next(drawn)
                if out is None:
                    self._give_up(member, events)
                if out is None or member.tail is None:  # given up, with this choice or before it
                    continue
                token = self._token(member, member.choice, out)
                events.append(token)
                self.counts.drawn_tokens += 1
                member.append(out.id)
                if token.finish is not None:
                    self.scheduler.finish(member)

    def _park(self, sequence: Sequence, firsts: list[Token], events: list[Event]) -> None:
        events += firsts
        self.scheduler.park(sequence)
        events.append(Parked(sequence.request, tuple(sequence.slots), _held(sequence), tuple(firsts)))

    def _give_up(self, sequence: Sequence, events: list[Event]) -> None:
        """The model gave NaN or infinity: no token may come of it, and no choice or block of the request is trusted."""
        message = "the model's output is not a number or infinite: its weights or state are damaged"
        if sequence.request.phase == "prefill":  # somebody may be reading it: its owner drops it
            self.scheduler.park(sequence)
            sequence.damaged = True
            events.append(Broken(sequence.request, message))
        elif self.scheduler.drop(sequence.request.key):
            self.pool.forget(sequence.names)
            events.append(Broken(sequence.request, message))

    def _history(self, sequence: Sequence) -> TokenHistory | None:
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
        """The other choices of a sequence whose prompt is done, with copies of its open block and its tail."""
        forks = self.scheduler.fork(sequence)
        for fork in forks:
            self.memory.copy_tail(_held(sequence), _held(fork))
            if sequence.computed % 256:
                block = sequence.computed // 256
                self.memory.copy_slot(sequence.slots[block], fork.slots[block])
        return forks

    def _pack(self, tail: int, boundary: int, slots: tuple[int, ...]) -> None:
        self.memory.pack_tail(tail, self.geometry.tail_spans(boundary), slots)

    def _unpack(self, slots: tuple[int, ...], tail: int, boundary: int) -> None:
        self.memory.unpack_tail(slots, self.geometry.tail_spans(boundary), tail)

    def _poison_tails(self, schedule: Schedule) -> None:
        for sequence in schedule.started:
            for member in (sequence, *sequence.forks):
                self.memory.poison_tail(_held(member))

    def _poison_slots(self, schedule: Schedule) -> None:
        for sequence in schedule.started:
            for member in (sequence, *sequence.forks):
                for slot in (*member.slots[member.named :], *member.rolling):
                    self.memory.poison_slot(slot)


def _held(sequence: Sequence) -> int:
    assert sequence.tail is not None
    return sequence.tail
