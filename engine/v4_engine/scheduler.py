"""Who runs next, and what memory each sequence holds: admission, chunked prefill, continuous batching, preemption.

Pure bookkeeping over a SlotPool; the engine moves the bytes. Every step: finished work was recorded with `record`, then
`schedule` admits what fits, and gives each decoding sequence one token and the rest of the token budget to prompts in
order of admission.

Admission is first come first served, except that a sequence whose next block a running one is computing is held, which
blocks nobody. A waiting sequence holds no memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from v4_core.blocks import BLOCK_TOKENS, hit_limit
from v4_core.errors import ConfigError
from v4_engine.boundaries import checkpoint_boundaries, resume
from v4_engine.counts import Counts, Reason
from v4_engine.errors import CapacityError, IntegrityError
from v4_engine.pool import SlotPool
from v4_engine.sequence import Key, Request, Sequence


@dataclass(frozen=True)
class SchedulerConfig:
    """What one engine may hold and do at once."""

    max_sequences: int = 16  # live tails
    scratch_tails: int = 2  # states inside chunks that one step can capture
    chunk_tokens: int = 512  # tokens of one step
    max_waiting: int = 256
    max_model_len: int = 8192  # tokens of prompt and output
    checkpoint_every: int = 0  # blocks; 0 = only where a prompt ends or leaves a chain

    def __post_init__(self) -> None:
        if self.max_sequences < 1 or self.scratch_tails < 0 or self.max_waiting < 0 or self.checkpoint_every < 0:
            raise ConfigError("max_sequences must be positive, the other limits not negative")
        if self.chunk_tokens < self.max_sequences:
            raise ConfigError(
                f"chunk_tokens ({self.chunk_tokens}) must be at least max_sequences ({self.max_sequences}): a "
                "step gives every decoding sequence a token, and a prompt what is left"
            )
        if self.max_model_len < 2:
            raise ConfigError("max_model_len must be at least 2: a prompt's token and an output token")


@dataclass(frozen=True)
class Work:
    """The next `count` tokens of a sequence; `captures` are (boundary, scratch tail)."""

    sequence: Sequence
    count: int
    captures: tuple[tuple[int, int], ...] = ()

    @property
    def of_prompt(self) -> bool:
        """Whether, until it is recorded, this is part of a prompt, or of what a preempted sequence runs again."""
        return self.sequence.remaining > 1 or self.sequence.computed < self.sequence.request.tokens


@dataclass(frozen=True)
class Restore:
    """Unpack the checkpoint in `slots` into a tail: the state after `boundary` tokens."""

    slots: tuple[int, ...]
    boundary: int
    tail: int


@dataclass
class Schedule:
    """What the engine does in one step, in this order."""

    admitted: list[Sequence] = field(default_factory=list)  # for the first time
    started: list[Sequence] = field(default_factory=list)  # given memory: admitted, or back after preemption
    restores: list[Restore] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    prefill_tokens: int = 0  # of prompts' work
    decode_tokens: int = 0  # of the other


class Scheduler:
    """Sequences of one engine: waiting, running, arriving by transfer, parked."""

    def __init__(
        self, pool: SlotPool, config: SchedulerConfig, checkpoint_slots: int, layers: int, window: int
    ) -> None:
        self.pool, self.config = pool, config
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.arriving: dict[Key, Sequence] = {}
        self.parked: dict[Key, Sequence] = {}
        self.stuck = False  # the first waiting sequence did not fit, and nothing was given back since
        self._checkpoint_slots, self._layers, self._window = checkpoint_slots, layers, window
        self._tails = list(range(config.max_sequences - 1, -1, -1))

    @property
    def counts(self) -> Counts:
        """What was counted since the pool was made."""
        return self.pool.counts

    @property
    def tails_free(self) -> int:
        """Live tails that no sequence holds."""
        return len(self._tails)

    def sequences(self) -> Iterable[Sequence]:
        """Every sequence that may hold memory, forks included."""
        for sequence in (*self.running, *self.arriving.values(), *self.parked.values()):
            yield sequence
            yield from sequence.forks

    def add(self, request: Request) -> None:
        """Queue a whole or prefill request that passes check_fits."""
        self.waiting.append(_with_forks(request))
        self.stuck = False

    def check_fits(self, request: Request) -> None:
        """Raise CapacityError, naming the limit, if an empty engine could not hold the request."""
        if request.tokens >= self.config.max_model_len:
            raise CapacityError(
                f"the prompt has {request.tokens} tokens, prompt and output together may have "
                f"{self.config.max_model_len}: shorten the prompt to {self.config.max_model_len - 1} or less"
            )
        decodes = request.phase != "prefill"
        need = self._need(request.tokens, 0, decodes, request.n - 1 if decodes else 0)
        if need > self.pool.total or (decodes and request.n > self.config.max_sequences):
            raise CapacityError(
                f"n={request.n} of {request.tokens} tokens needs {need} cache slots and {request.n} tails, this worker "
                f"has {self.pool.total} and {self.config.max_sequences}: ask for fewer choices"
            )

    def reserve(self, request: Request) -> Sequence | None:
        """Memory for a cache that arrives by transfer, or None if there is none; leading blocks may be here.

        Whoever waits here, preempted in the middle of a stream perhaps, comes first.
        """
        if self.stuck:
            return None
        sequence = _with_forks(request)
        depth = self.pool.tree.match(sequence.names[: request.tokens // BLOCK_TOKENS])
        if not self._take(sequence, depth, "transfer"):
            return None
        self.arriving[request.key] = sequence
        return sequence

    def arrived(self, key: Key, block: int) -> None:
        """A complete block of a reserved sequence is in its slot: name it. Blocks arrive in order."""
        sequence = self.arriving.get(key)
        if sequence is not None and sequence.named == block:
            self._name_next(sequence)

    def adopt(self, key: Key) -> Sequence:
        """The whole cache of a reserved sequence is here: it runs on from there. Raises IntegrityError if it is not."""
        sequence = self.arriving.pop(key, None)
        if sequence is None or sequence.named != len(sequence.ids) // BLOCK_TOKENS:
            raise IntegrityError(f"request {key} is to be adopted, but its blocks have not all arrived")
        sequence.computed = len(sequence.ids)
        self.running.append(sequence)
        return sequence

    def fork(self, sequence: Sequence) -> list[Sequence]:
        """A sequence's other choices, its prompt done: they share its blocks; the engine copies the open one."""
        tree, forks = self.pool.tree, sequence.forks
        sequence.forks = []
        for fork in forks:
            tree.acquire(sequence.names[: sequence.named])
            fork.slots[:0] = sequence.slots[: sequence.named]
            fork.names, fork.named = list(sequence.names), sequence.named
            fork.computed, fork.write_from, fork.valid_from = (
                sequence.computed,
                sequence.write_from,
                sequence.valid_from,
            )
        self.running += forks
        return forks

    def park(self, sequence: Sequence) -> None:
        """The prompt is done; the cache stays for a decode worker until `drop`."""
        self.running.remove(sequence)
        self.parked[sequence.request.key] = sequence

    def finish(self, sequence: Sequence) -> None:
        """The sequence has ended: keep its blocks and rolling checkpoint in the tree, give back the rest."""
        self.running.remove(sequence)
        self._release(sequence)

    def knows(self, key: Key) -> bool:
        """Whether a request is here in any state."""
        here = (*self.waiting, *self.running)
        return key in self.arriving or key in self.parked or any(s.request.key == key for s in here)

    def drop(self, key: Key) -> bool:
        """Free everything of a request, in whatever state. False if there was nothing."""
        before = len(self.waiting)
        self.waiting = [s for s in self.waiting if s.request.key != key]
        self.stuck = False
        found = [s for s in self.running if s.request.key == key]
        self.running = [s for s in self.running if s.request.key != key]
        found += [table.pop(key) for table in (self.arriving, self.parked) if key in table]
        for sequence in found:
            self._release(sequence)
        return bool(found) or len(self.waiting) < before

    def schedule(self) -> Schedule:
        """Admit what fits and share out one step."""
        schedule = Schedule()
        for sequence in list(self.running):
            if sequence.tail is not None and sequence.remaining == 1:
                self._grow(sequence)
        self._admit(schedule)
        schedule.work = [Work(s, 1) for s in self.running if s.remaining == 1]
        budget = self.config.chunk_tokens - len(schedule.work)
        scratch = list(range(self.config.max_sequences, self.config.max_sequences + self.config.scratch_tails))
        for sequence in self.running:
            if sequence.remaining > 1 and budget > 0:
                work = _chunk(sequence, min(budget, sequence.remaining), scratch)
                budget -= work.count
                schedule.work.append(work)
        schedule.prefill_tokens = sum(work.count for work in schedule.work if work.of_prompt)
        schedule.decode_tokens = sum(work.count for work in schedule.work) - schedule.prefill_tokens
        return schedule

    def record(self, work: Work) -> None:
        """The tokens of `work` were computed: name the blocks that they completed."""
        sequence = work.sequence
        if work.of_prompt:
            self.counts.prefill_tokens += work.count
        sequence.computed += work.count
        sequence.boundaries = [b for b in sequence.boundaries if b > sequence.computed]
        while sequence.named < sequence.computed // BLOCK_TOKENS:
            self._name_next(sequence)

    def checkpoint(self, sequence: Sequence, boundary: int) -> tuple[int, ...] | None:
        """Slots for a checkpoint at a boundary just computed, or None if it has one or nothing is free."""
        name = sequence.names[boundary // BLOCK_TOKENS - 1]
        node = self.pool.tree.nodes[name]
        if node.checkpoint is not None:
            return None
        slots = self.pool.take(self._checkpoint_slots, "checkpoint")
        if slots is not None:
            self.pool.tree.set_checkpoint(name, slots)
        return slots

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every slot and tail is accounted for."""
        owned: list[int] = []
        tails = list(self._tails)
        for sequence in self.sequences():
            owned += sequence.slots[sequence.named :]
            owned += sequence.rolling
            tails += [] if sequence.tail is None else [sequence.tail]
        self.pool.check_integrity(owned)
        if sorted(tails) != list(range(self.config.max_sequences)):
            raise IntegrityError(f"tails are lost or held twice: {sorted(tails)}")

    def _need(self, tokens: int, shared: int, grows: bool, forks: int) -> int:
        """Slots to own for `tokens`, of which `shared` blocks are in the tree.

        A sequence that decodes here also owns one block to grow and its rolling checkpoint; each fork the same and a
        copy of the open block.
        """
        blocks = -(-tokens // BLOCK_TOKENS) - shared
        growth = 1 + self._checkpoint_slots if grows else 0
        return blocks + growth + forks * (growth + (tokens % BLOCK_TOKENS > 0))

    def _admit(self, schedule: Schedule) -> None:
        if self.stuck:
            return
        for sequence in list(self.waiting):
            names = sequence.names[: hit_limit(len(sequence.ids)) // BLOCK_TOKENS]
            depth = self.pool.tree.match(names)
            if depth < len(names) and self._computing(names[depth], depth):
                continue
            if not self._start(sequence, depth, schedule):
                self.stuck = True
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            if not sequence.admitted:
                sequence.admitted = True
                schedule.admitted.append(sequence)
                self._count_prefix(sequence, names, depth)
            schedule.started.append(sequence)

    def _count_prefix(self, sequence: Sequence, names: list[bytes], depth: int) -> None:
        """Count the tokens of a prompt that was given memory, by what was here of them."""
        evicted = BLOCK_TOKENS * sum(self.pool.evicted_lately(name) for name in names[depth:])
        replays = sequence.valid_from > 0
        self.counts.admit(len(sequence.ids), depth * BLOCK_TOKENS, sequence.computed, replays, evicted)

    def _computing(self, name: bytes, depth: int) -> bool:
        """Whether a running prompt is about to complete this block."""
        return any(r.named <= depth < len(r.names) and r.names[depth] == name and r.remaining > 1 for r in self.running)

    def _start(self, sequence: Sequence, depth: int, schedule: Schedule) -> bool:
        tree, config = self.pool.tree, self.config
        saved = tree.resumable(sequence.names, depth)
        packed = tree.nodes[sequence.names[saved - 1]].checkpoint if saved else None
        if not self._take(sequence, depth, "prompt"):
            return False
        begin = resume(depth * BLOCK_TOKENS, saved * BLOCK_TOKENS, self._layers, self._window)
        sequence.computed, sequence.write_from, sequence.valid_from = begin.start, begin.write_from, begin.valid_from
        leaves = depth > saved and tree.nodes[sequence.names[depth - 1]].children > 0
        junction = depth * BLOCK_TOKENS if leaves else None
        wanted = checkpoint_boundaries(len(sequence.ids), begin.exact_from, junction, config.checkpoint_every)
        sequence.boundaries = [b for b in wanted if not self._has_checkpoint(sequence, b)]
        if begin.restore:
            assert packed is not None
            assert sequence.tail is not None
            schedule.restores.append(Restore(packed, begin.start, sequence.tail))
        return True

    def _has_checkpoint(self, sequence: Sequence, boundary: int) -> bool:
        node = self.pool.tree.nodes.get(sequence.names[boundary // BLOCK_TOKENS - 1])
        return node is not None and node.checkpoint is not None

    def _take(self, sequence: Sequence, depth: int, reason: Reason) -> bool:
        """Give a sequence and its forks all their memory, sharing `depth` blocks, or nothing."""
        tree, tokens, grows = self.pool.tree, len(sequence.ids), sequence.request.phase != "prefill"
        family = [sequence, *sequence.forks]
        need = self._need(tokens, depth, grows, len(sequence.forks))
        if len(self._tails) < len(family) or need > self.pool.available:
            return False
        tree.acquire(sequence.names[:depth])
        taken = self.pool.take(need, reason)
        if taken is None:
            tree.release(sequence.names[:depth])
            return False
        free = list(taken)
        sequence.slots = [tree.nodes[name].slot for name in sequence.names[:depth]]
        sequence.named = depth
        for member in family:
            own = -(-tokens // BLOCK_TOKENS) - depth if member is sequence else int(tokens % BLOCK_TOKENS > 0)
            member.slots += _split(free, own + grows)
            member.rolling, member.rolling_at = tuple(_split(free, self._checkpoint_slots if grows else 0)), 0
            member.tail = self._tails.pop()
        return True

    def _grow(self, sequence: Sequence) -> bool:
        """Make sure that the sequence has a slot for its next token, preempting others or itself."""
        while sequence.computed // BLOCK_TOKENS >= len(sequence.slots):
            taken = self.pool.take(1, "decode")
            if taken is not None:
                sequence.slots += taken
                return True
            victim = next(s for s in reversed(self.running) if s.request.phase != "prefill")
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Give up a sequence's memory; what has a name stays in the tree until it is needed."""
        self.running.remove(sequence)
        self._release(sequence)
        sequence.computed = sequence.write_from = sequence.valid_from = 0
        self.waiting.insert(0, sequence)
        self.counts.preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        tree = self.pool.tree
        self.stuck = False
        for member in (sequence, *sequence.forks):
            if member.rolling_at:
                name = member.names[member.rolling_at // BLOCK_TOKENS - 1]
                if name in tree.nodes and tree.nodes[name].checkpoint is None:
                    tree.set_checkpoint(name, member.rolling)
                    member.rolling = ()
            self.pool.give((*member.slots[member.named :], *member.rolling))
            tree.release(member.names[: member.named])
            if member.tail is not None:
                self._tails.append(member.tail)
            member.slots, member.named, member.rolling, member.rolling_at, member.tail = [], 0, (), 0, None

    def _name_next(self, sequence: Sequence) -> None:
        """Put the sequence's next complete block into the tree; if it is there already, use that one and free ours."""
        index, tree = sequence.named, self.pool.tree
        name = sequence.names[index]
        node = tree.nodes.get(name)
        if node is None:
            tree.insert(sequence.names[index - 1] if index else None, name, sequence.slots[index])
        else:
            tree.acquire([name])
            self.pool.give([sequence.slots[index]])
            sequence.slots[index] = node.slot
            self.stuck = False
        sequence.named += 1


def _with_forks(request: Request) -> Sequence:
    sequence = Sequence.of(request, request.first_choice)
    if request.phase != "prefill":
        sequence.forks = [Sequence(request, request.first_choice + i, list(sequence.ids)) for i in range(1, request.n)]
    return sequence


def _chunk(sequence: Sequence, count: int, scratch: list[int]) -> Work:
    """The next tokens, cut at the first boundary that no scratch tail is left for."""
    start = sequence.computed
    captures: list[tuple[int, int]] = []
    for boundary in sequence.boundaries:
        if start < boundary < start + count:
            if not scratch:
                return Work(sequence, boundary - start, tuple(captures))
            captures.append((boundary, scratch.pop()))
    return Work(sequence, count, tuple(captures))


def _split(items: list[int], count: int) -> list[int]:
    taken = items[:count]
    del items[:count]
    return taken
