"""The scheduler without a model: the bookkeeping always adds up, and every request that fits is served."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from v4_core.errors import ConfigError
from v4_engine.errors import CapacityError, IntegrityError
from v4_engine.options import SchedulerConfig
from v4_engine.pool import SlotPool
from v4_engine.schedule import Schedule
from v4_engine.scheduler import Scheduler
from v4_engine.sequence import Phase, Request, Sequence

CHECKPOINT = 2


def make(slots: int = 14, sequences: int = 4, length: int = 1500, **settings: int) -> Scheduler:
    """Return a scheduler whose checkpoints take 2 slots, of a model with a replay of 60 tokens."""
    config = SchedulerConfig(max_sequences=sequences, max_model_len=length, **{"chunk_tokens": 300, **settings})
    return Scheduler(SlotPool(slots), config, CHECKPOINT, layers=4, window=16)


def ask(name: str, tokens: int, phase: Phase = "whole", n: int = 1, family: int = 0, output: int = 0) -> Request:
    """Return a request. All prompts of a family are prefixes of one long prompt."""
    ids = [7 * family + i % 5 for i in range(tokens + output)]
    return Request((name, 0), phase, ids[:tokens], output=ids[tokens:], n=n, max_tokens=10_000)


def step(scheduler: Scheduler) -> Schedule:
    """Run one step like an engine whose model always gives token 1."""
    schedule = scheduler.schedule()
    for work in schedule.work:
        sequence, wanted = work.sequence, set(work.sequence.boundaries)
        scheduler.record(work)
        for boundary in (*(b for b, _ in work.captures), *({sequence.computed} & wanted)):
            scheduler.allocator.checkpoint(sequence, boundary)
        if sequence.remaining == 0:
            if sequence.request.phase == "prefill":
                scheduler.park(sequence)
                continue
            for member in (sequence, *scheduler.fork(sequence)):
                member.append(1)
                if len(member.ids) >= scheduler.config.max_model_len:
                    scheduler.finish(member)
    scheduler.check_integrity()
    return schedule


def drain(scheduler: Scheduler) -> None:
    """Run until no sequence runs or waits."""
    for _ in range(20_000):
        if not scheduler.running and not scheduler.waiting:
            return
        step(scheduler)
    raise AssertionError("sequences still run or wait after 20,000 steps")


def test_what_check_fits_accepts_an_empty_engine_admits_whatever_is_cached() -> None:
    """If slots are short, even the checkpoint at which the request resumes is evicted."""
    scheduler = make(slots=8, length=1100)
    scheduler.add(ask("first", 700))
    for _ in range(5):
        step(scheduler)
    scheduler.drop(("first", 0))
    scheduler.add(ask("second", 1000))
    schedule = step(scheduler)
    assert [s.request.key[0] for s in schedule.admitted] == ["second"]
    assert schedule.restores


@pytest.mark.parametrize("phase", ["whole", "prefill"])
def test_a_repeated_prompt_resumes_after_its_complete_blocks_for_every_length(phase: Phase) -> None:
    """It resumes at the checkpoint at the end of the blocks; a replay would start 60 tokens earlier."""
    scheduler = make(slots=64, length=2048, chunk_tokens=2048)
    for n in range(1, 1025):
        for hit in (0, 256 * ((n - 1) // 256)):
            scheduler.add(ask("r", n, phase, family=n))
            schedule = step(scheduler)
            assert schedule.prefill_tokens == n - hit
            assert [restore.boundary for restore in schedule.restores] == [hit] * (hit > 0)
            assert scheduler.drop(("r", 0))


def test_a_decode_reservation_waits_behind_a_preempted_stream() -> None:
    scheduler = make(slots=10, sequences=3)
    scheduler.add(ask("old", 500, family=1))
    scheduler.add(ask("young", 500, family=2))
    while not scheduler.pool.counts.preemptions:
        step(scheduler)
    while not scheduler.stuck:
        step(scheduler)
    assert scheduler.reserve(ask("new", 10, "decode", family=3)) is None
    drain(scheduler)
    assert scheduler.reserve(ask("new", 10, "decode", family=3)) is not None


def test_a_sequence_is_admitted_once_even_if_it_is_preempted() -> None:
    scheduler = make(slots=10, sequences=3)
    scheduler.add(ask("old", 500, family=1))
    scheduler.add(ask("young", 500, family=2))
    admitted: list[Sequence] = []
    for _ in range(3000):
        admitted += step(scheduler).admitted
        if not scheduler.running:
            break
    assert scheduler.pool.counts.preemptions
    assert sorted(s.request.key[0] for s in admitted) == ["old", "young"]


def test_sequences_that_wait_for_memory_are_no_work() -> None:
    scheduler = make(slots=8, length=1100)
    scheduler.add(ask("parked", 1000, "prefill", family=1))
    while not scheduler.parked:
        step(scheduler)
    scheduler.add(ask("waits", 1000, family=2))
    step(scheduler)
    assert scheduler.stuck
    scheduler.drop(("parked", 0))
    assert not scheduler.stuck
    assert step(scheduler).admitted


def test_an_unfinished_transfer_is_not_adopted() -> None:
    scheduler = make()
    request = ask("r", 600, "decode", n=2)
    assert scheduler.reserve(request) is not None
    scheduler.arrived(request.key, 0)
    with pytest.raises(IntegrityError, match="not all arrived"):
        scheduler.adopt(request.key)


@pytest.mark.parametrize(
    "settings",
    [{"chunk_tokens": 3}, {"max_sequences": 0}, {"max_model_len": 1}, {"scratch_tails": -1}, {"max_waiting": -1}],
)
def test_invalid_settings_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        SchedulerConfig(**{"max_sequences": 4, "max_model_len": 100, "chunk_tokens": 100, **settings})


class Machine(RuleBasedStateMachine):
    """Requests of four families are added, run, arrive, are parked and dropped, while slots and tails are scarce."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = make()
        self.count = 0
        self.admitted = self.computed = 0

    def name(self) -> str:
        """Return the name of a new request."""
        self.count += 1
        return f"r{self.count}"

    @rule(
        tokens=st.integers(1, 1400),
        phase=st.sampled_from(["whole", "prefill"]),
        n=st.integers(1, 3),
        family=st.integers(0, 3),
        output=st.integers(0, 90),
    )
    def add(self, tokens: int, phase: Phase, n: int, family: int, output: int) -> None:
        """Add a prompt, or a continuation."""
        request = ask(self.name(), tokens, phase, n if not output else 1, family, output)
        try:
            self.scheduler.check_fits(request)
        except CapacityError:
            return
        self.scheduler.add(request)

    @rule(tokens=st.integers(1, 1400), n=st.integers(1, 2), family=st.integers(0, 3))
    def reserve(self, tokens: int, n: int, family: int) -> None:
        """Reserve memory for a cache that arrives."""
        request = ask(self.name(), tokens, "decode", n, family)
        try:
            self.scheduler.check_fits(request)
        except CapacityError:
            return
        self.scheduler.reserve(request)

    @precondition(lambda self: self.scheduler.arriving)
    @rule(data=st.data(), whole=st.booleans())
    def arrive(self, data: st.DataObject, whole: bool) -> None:
        """The next block of a reserved cache arrives, or the whole cache."""
        sequence = data.draw(st.sampled_from(list(self.scheduler.arriving.values())))
        key, blocks = sequence.request.key, len(sequence.ids) // 256
        while sequence.named < blocks:
            self.scheduler.arrived(key, sequence.named)
            if not whole:
                return
        for member in (self.scheduler.adopt(key), *self.scheduler.fork(sequence)):
            member.append(1)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """Drop a request in any state."""
        s = self.scheduler
        keys = {x.request.key for x in (*s.waiting, *s.running, *s.arriving.values(), *s.parked.values())}
        if keys:
            assert s.drop(data.draw(st.sampled_from(sorted(keys))))

    @rule(times=st.integers(1, 30))
    def run(self, times: int) -> None:
        """Run steps."""
        for _ in range(times):
            self.step()

    def step(self) -> None:
        """Run one step, and count its tokens here too."""
        before = {id(s): s.computed for s in self.scheduler.running}
        schedule = step(self.scheduler)
        self.admitted += sum(s.request.tokens for s in schedule.admitted)
        self.computed += schedule.prefill_tokens
        assert schedule.prefill_tokens + schedule.decode_tokens == sum(work.count for work in schedule.work)
        singles = [
            w for w in schedule.work if w.count == 1 and before.get(id(w.sequence), 0) >= w.sequence.request.tokens
        ]
        assert schedule.decode_tokens == len(singles)

    @invariant()
    def books_add_up(self) -> None:
        """Every slot and tail is in one place."""
        self.scheduler.check_integrity()

    @invariant()
    def counts_add_up(self) -> None:
        """Each admitted token has one result, and each computed token is counted."""
        counts = self.scheduler.pool.counts
        assert sum(counts.prefix_tokens.values()) == self.admitted
        assert min(counts.prefix_tokens.values()) >= 0
        assert counts.prefill_tokens == self.computed

    def teardown(self) -> None:
        """Without parked and arriving requests, all others are served, and all memory is free in the end."""
        for key in [*self.scheduler.parked, *self.scheduler.arriving]:
            self.scheduler.drop(key)
        for _ in range(40_000):
            if not self.scheduler.running and not self.scheduler.waiting:
                break
            self.step()
            for key in list(self.scheduler.parked):
                self.scheduler.drop(key)
        assert not self.scheduler.waiting
        assert not self.scheduler.running
        assert self.scheduler.pool.available == self.scheduler.pool.total
        assert self.scheduler.allocator.tails_free == self.scheduler.config.max_sequences


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)
