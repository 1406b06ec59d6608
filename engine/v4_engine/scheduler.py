"""Which sequences run: the queue, admission, preemption, and sequences that arrive or are kept for a transfer.

Pure bookkeeping; the engine moves the bytes. In every step the engine calls `schedule`, computes what the schedule says
and calls `record` for each piece of work.

Admission is first come, first served. The one exception is a sequence whose next block a running sequence is computing:
the sequence waits for that block, and later sequences may overtake it. A waiting sequence holds no memory.
"""

from collections.abc import Iterable

from v4_core.blocks import BLOCK_TOKENS, hit_limit
from v4_engine.allocator import Allocator
from v4_engine.boundaries import checkpoint_boundaries, resume
from v4_engine.errors import CapacityError, IntegrityError
from v4_engine.options import SchedulerConfig
from v4_engine.pool import SlotPool
from v4_engine.schedule import Restore, Schedule, Work, divide
from v4_engine.sequence import Key, Request, Sequence


class Scheduler:
    """The sequences of one engine: waiting, running, arriving by transfer, or parked for a transfer."""

    def __init__(
        self, pool: SlotPool, config: SchedulerConfig, checkpoint_slots: int, layers: int, window: int
    ) -> None:
        """Raises ValueError if `config` does not say max_model_len: what 0 means depends on the cache."""
        if not config.max_model_len:
            raise ValueError("the scheduler needs a max_model_len")
        self.pool, self.config = pool, config
        self.allocator = Allocator(pool, config.max_sequences, checkpoint_slots)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.arriving: dict[Key, Sequence] = {}
        self.parked: dict[Key, Sequence] = {}
        self.stuck = False  # the first waiting sequence did not fit, and no memory was freed since
        self._layers, self._window = layers, window

    def add(self, request: Request) -> None:
        """Queue a whole or prefill request that has passed check_fits."""
        self.waiting.append(_with_forks(request))
        self.stuck = False

    def check_fits(self, request: Request) -> None:
        """Raise CapacityError, which names the limit, if even an empty engine could not hold the request."""
        longest = self.config.max_model_len
        if request.tokens >= longest:
            raise CapacityError(
                f"the prompt has {request.tokens} tokens, but prompt and output together may have {longest}: shorten "
                f"the prompt to {longest - 1} tokens or fewer"
            )
        decodes = request.phase != "prefill"
        need = self.allocator.need(request.tokens, 0, decodes, request.n - 1 if decodes else 0)
        if need > self.pool.total or (decodes and request.n > self.config.max_sequences):
            raise CapacityError(
                f"n={request.n} with {request.tokens} tokens needs {need} cache slots and {request.n} tails, but this "
                f"worker has {self.pool.total} and {self.config.max_sequences}: ask for fewer choices"
            )

    def reserve(self, request: Request) -> Sequence | None:
        """Allocate memory for a cache that arrives by transfer. Leading blocks that are in the tree are shared.

        Returns None if there is not enough, or if a sequence waits for memory here: that sequence, which may have been
        preempted in the middle of a stream, comes first.
        """
        if self.stuck:
            return None
        sequence = _with_forks(request)
        depth = self.pool.tree.match(sequence.names[: request.tokens // BLOCK_TOKENS])
        if not self.allocator.allocate(sequence, depth, "transfer"):
            return None
        self.arriving[request.key] = sequence
        return sequence

    def arrived(self, key: Key, block: int) -> None:
        """Name a complete block of a reserved sequence that has arrived in its slot. Blocks arrive in order."""
        sequence = self.arriving.get(key)
        if sequence is not None and sequence.named == block:
            self._name_next(sequence)

    def adopt(self, key: Key) -> Sequence:
        """Run a reserved sequence whose whole cache has arrived. Raises IntegrityError if blocks are missing."""
        sequence = self.arriving.pop(key, None)
        if sequence is None or sequence.named != len(sequence.ids) // BLOCK_TOKENS:
            raise IntegrityError(f"request {key} is to be adopted, but its blocks have not all arrived")
        sequence.computed = len(sequence.ids)
        self.running.append(sequence)
        return sequence

    def fork(self, sequence: Sequence) -> list[Sequence]:
        """Run the other choices of a sequence whose prompt is computed, and return them.

        They share the sequence's named blocks. The engine copies the open block and the tail.
        """
        forks, sequence.forks = sequence.forks, []
        for fork in forks:
            self.allocator.share(sequence, fork)
            fork.computed, fork.write_from = sequence.computed, sequence.write_from
            fork.valid_from = sequence.valid_from
        self.running += forks
        return forks

    def park(self, sequence: Sequence) -> None:
        """Keep the cache of a prompt that is computed, for a decode worker, until `drop`."""
        self.running.remove(sequence)
        self.parked[sequence.request.key] = sequence

    def finish(self, sequence: Sequence) -> None:
        """End a sequence and free what is not named. Its named blocks and rolling checkpoint stay in the tree."""
        self.running.remove(sequence)
        self._release(sequence)

    def knows(self, key: Key) -> bool:
        """Whether a request is here in any state."""
        queued = (*self.waiting, *self.running)
        return key in self.arriving or key in self.parked or any(s.request.key == key for s in queued)

    def drop(self, key: Key) -> bool:
        """Free everything of a request, whatever its state. Returns False if there is no such request."""
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
        """Admit the sequences that fit and divide one step among all that run."""
        schedule = Schedule()
        for sequence in list(self.running):
            if sequence.tail is not None and sequence.remaining == 1:
                self._make_room(sequence)
        self._admit(schedule)
        tails = self.config.max_sequences
        scratch = list(range(tails, tails + self.config.scratch_tails))
        schedule.work = divide(self.running, self.config.chunk_tokens, scratch)
        schedule.prefill_tokens = sum(work.count for work in schedule.work if work.of_prompt)
        schedule.decode_tokens = sum(work.count for work in schedule.work) - schedule.prefill_tokens
        return schedule

    def record(self, work: Work) -> None:
        """Account for the tokens of `work`, which are computed, and name the blocks that they completed."""
        sequence = work.sequence
        if work.of_prompt:
            self.pool.counts.prefill_tokens += work.count
        sequence.computed += work.count
        sequence.boundaries = [b for b in sequence.boundaries if b > sequence.computed]
        while sequence.named < sequence.computed // BLOCK_TOKENS:
            self._name_next(sequence)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every slot and tail is accounted for."""
        self.allocator.check_integrity(self._holders())

    def _holders(self) -> Iterable[Sequence]:
        """Every sequence that may hold memory, forks included."""
        for sequence in (*self.running, *self.arriving.values(), *self.parked.values()):
            yield sequence
            yield from sequence.forks

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
        """Count the tokens of an admitted prompt by what the prefix cache had of them."""
        evicted = BLOCK_TOKENS * sum(self.pool.recently_evicted(name) for name in names[depth:])
        replays = sequence.valid_from > 0
        self.pool.counts.admit(len(sequence.ids), depth * BLOCK_TOKENS, sequence.computed, replays, evicted)

    def _computing(self, name: bytes, depth: int) -> bool:
        """Whether a running prompt will complete the block of this name, which is number `depth` of its blocks."""
        return any(r.named <= depth < len(r.names) and r.names[depth] == name and r.remaining > 1 for r in self.running)

    def _start(self, sequence: Sequence, depth: int, schedule: Schedule) -> bool:
        """Allocate the memory of a sequence and decide where its prompt resumes. Returns False if it does not fit."""
        tree = self.pool.tree
        saved = tree.resumable(sequence.names, depth)
        packed = tree.nodes[sequence.names[saved - 1]].checkpoint if saved else None
        if not self.allocator.allocate(sequence, depth, "prompt"):
            return False
        begin = resume(depth * BLOCK_TOKENS, saved * BLOCK_TOKENS, self._layers, self._window)
        sequence.computed, sequence.write_from, sequence.valid_from = begin.start, begin.write_from, begin.valid_from
        diverges = depth > saved and tree.nodes[sequence.names[depth - 1]].children > 0
        junction = depth * BLOCK_TOKENS if diverges else None
        wanted = checkpoint_boundaries(len(sequence.ids), begin.exact_from, junction, self.config.checkpoint_every)
        sequence.boundaries = [b for b in wanted if not self._has_checkpoint(sequence, b)]
        if begin.restore:
            assert packed is not None
            assert sequence.tail is not None
            schedule.restores.append(Restore(packed, begin.start, sequence.tail))
        return True

    def _has_checkpoint(self, sequence: Sequence, boundary: int) -> bool:
        node = self.pool.tree.nodes.get(sequence.names[boundary // BLOCK_TOKENS - 1])
        return node is not None and node.checkpoint is not None

    def _make_room(self, sequence: Sequence) -> None:
        """Make sure that a decoding sequence has a slot for its next token.

        Preempts the sequence that started last, which may be this one, until a slot is free.
        """
        while sequence.computed // BLOCK_TOKENS >= len(sequence.slots):
            if self.allocator.grow(sequence):
                return
            victim = next(s for s in reversed(self.running) if s.request.phase != "prefill")
            self._preempt(victim)
            if victim is sequence:
                return

    def _preempt(self, sequence: Sequence) -> None:
        """Free a sequence's memory and put it at the head of the queue.

        Its named blocks stay in the tree until they are evicted.
        """
        self.running.remove(sequence)
        self._release(sequence)
        sequence.computed = sequence.write_from = sequence.valid_from = 0
        self.waiting.insert(0, sequence)
        self.pool.counts.preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self.allocator.release(sequence)
        self.stuck = False

    def _name_next(self, sequence: Sequence) -> None:
        if self.allocator.name_next(sequence):
            self.stuck = False


def _with_forks(request: Request) -> Sequence:
    sequence = Sequence.of(request, request.first_choice)
    if request.phase != "prefill":
        sequence.forks = [Sequence(request, request.first_choice + i, list(sequence.ids)) for i in range(1, request.n)]
    return sequence
