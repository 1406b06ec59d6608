"""Leases under any order of events: each ends once, and nothing is read after its end."""

from contextlib import AbstractContextManager, ExitStack
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from v4_core.v1 import worker_pb2 as pb
from v4_kvtransfer.errors import LeaseGone, StaleAttempt, TransferError
from v4_kvtransfer.leases import Drop, Lease, LeaseTable, Pull

TTL = 30.0
TOKENS = 600
PICK = st.integers(0, 1000)


def test_a_lease_is_in_transfer_while_it_is_pulled_and_until_its_confirmation_may_have_come() -> None:
    now = [0.0]
    table = LeaseTable(TTL, lambda lease, reason: None, lambda: now[0])
    lease = table.grant("r", 0, TOKENS)
    with table.attached(lease.id, "r", 0, lambda: None):
        assert not table.in_transfer(lease), "prefill computes: nobody can have it whole soon"
        table.finish(lease.id, range(3), 0, [pb.First(id=1)])
        now[0] = 20.0
        assert table.in_transfer(lease)
    now[0] = 20.9
    assert table.in_transfer(lease)
    now[0] = 21.1
    assert not table.in_transfer(lease)


class Machine(RuleBasedStateMachine):
    """The table beside a model of it that is written from the design's words."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ends: list[tuple[int, str]] = []
        self.table = LeaseTable(TTL, lambda lease, end: self.ends.append((lease.id, end)), lambda: self.now)
        self.granted: list[Lease] = []
        self.expected: dict[int, str] = {}  # lease -> reason
        self.pulls: list[tuple[Pull, AbstractContextManager[Pull]]] = []
        self.current: dict[int, Pull] = {}
        self.finished: set[int] = set()
        self.idle_since: dict[int, float] = {}
        self.attempts: dict[int, int] = {}

    def _pick(self, pick: int) -> Lease | None:
        """One of the leases that live, or the last one that ended."""
        live = [lease for lease in self.granted if lease.id not in self.expected]
        known = live + [lease for lease in self.granted if lease.id in self.expected][-1:]
        return known[pick % len(known)] if known else None

    def _ended(self, lease: Lease, reason: str) -> None:
        if lease.id not in self.expected:
            self.expected[lease.id] = reason
            self.current.pop(lease.id, None)

    @precondition(lambda self: len(self.granted) - len(self.expected) < 2)
    @rule(attempt=st.integers(0, 3))
    def grant(self, attempt: int) -> None:
        lease = self.table.grant(f"r{len(self.granted)}", attempt, TOKENS)
        self.granted.append(lease)
        self.attempts[lease.id] = attempt

    @rule(pick=PICK, blocks=st.integers(0, 2))
    def progress(self, pick: int, blocks: int) -> None:
        if (lease := self._pick(pick)) and not lease.finished and blocks >= lease.complete_blocks:
            self.table.progress(lease.id, range(blocks + 1), blocks)

    @rule(pick=PICK)
    def finish(self, pick: int) -> None:
        if (lease := self._pick(pick)) and not lease.finished:
            self.table.finish(lease.id, range(3), 0, [pb.First(id=1)])
            self.finished.add(lease.id)
            self.idle_since[lease.id] = self.now

    @rule(pick=PICK, why=st.sampled_from(get_args(Drop)))
    def drop(self, pick: int, why: Drop) -> None:
        if lease := self._pick(pick):
            self.table.drop(lease.id, why)
            self._ended(lease, why)

    @rule(pick=PICK, step=st.sampled_from([-1, 0, 1]))
    def attach(self, pick: int, step: int) -> None:
        if not (lease := self._pick(pick)):
            return
        attempt = max(0, self.attempts[lease.id] + step)
        attached = self.table.attached(lease.id, lease.request, attempt, lambda: None)
        if lease.id in self.expected:
            with pytest.raises(LeaseGone):
                attached.__enter__()
        elif attempt < self.attempts[lease.id]:
            with pytest.raises(StaleAttempt):
                attached.__enter__()
        else:
            pull = attached.__enter__()
            self.pulls.append((pull, attached))
            self.current[lease.id] = pull
            self.attempts[lease.id] = attempt

    @rule(pick=PICK)
    def detach(self, pick: int) -> None:
        if self.pulls:
            pull, attached = self.pulls.pop(pick % len(self.pulls))
            attached.__exit__(None, None, None)
            if self.current.get(pull.lease.id) is pull:
                del self.current[pull.lease.id]
                self.idle_since[pull.lease.id] = self.now

    @rule(pick=PICK, step=st.sampled_from([-1, 0, 1]), other=st.booleans())
    def confirm(self, pick: int, step: int, other: bool) -> None:
        if lease := self._pick(pick):
            attempt = max(0, self.attempts[lease.id] + step)
            live = lease.id not in self.expected and lease.finished
            held = live and attempt == self.attempts[lease.id] and not other
            assert self.table.confirm(lease.id, "other" if other else lease.request, attempt) == held
            if held:
                self._ended(lease, "released")

    @rule(seconds=st.sampled_from([0.5, 10.0, 29.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for lease in self.granted:
            idle = lease.finished and lease.id not in self.current
            if idle and lease.id not in self.expected and self.now - self.idle_since[lease.id] >= TTL:
                self._ended(lease, "expired")
        self.table.expire()

    @invariant()
    def each_ended_once(self) -> None:
        assert dict(self.ends) == self.expected
        assert len(self.ends) == len(self.expected)
        assert self.table.held == len(self.granted) - len(self.expected)
        assert self.table.finished == len(self.finished - self.expected.keys())

    @invariant()
    def only_the_current_pull_reads(self) -> None:
        for pull, _ in self.pulls:
            if self.current.get(pull.lease.id) is pull:
                pull.check()
            else:
                with pytest.raises(TransferError):
                    pull.check()

    def teardown(self) -> None:
        for _, attached in self.pulls:
            attached.__exit__(None, None, None)
        for lease in self.granted:
            self.table.drop(lease.id)
        assert self.table.held == 0
        assert sorted(lease for lease, _ in self.ends) == sorted(lease.id for lease in self.granted)


Machine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestLeases = Machine.TestCase


def test_slots_that_do_not_hold_the_sequence_are_refused() -> None:
    table = LeaseTable(TTL, lambda lease, reason: None)
    lease = table.grant("r", 0, TOKENS)
    with pytest.raises(ValueError, match="2 slots do not hold 600 tokens"):
        table.finish(lease.id, [0, 1], 0, [])
    with pytest.raises(ValueError, match="2 complete blocks in 1 slots"):
        table.progress(lease.id, [0], 2)
    table.progress(lease.id, [0, 1], 2)
    with pytest.raises(ValueError, match="1 complete blocks"):
        table.progress(lease.id, [0, 1], 1)


def test_the_time_to_live_counts_from_the_last_pull_that_left() -> None:
    now, ends = [0.0], list[str]()
    table = LeaseTable(TTL, lambda lease, reason: ends.append(reason), lambda: now[0])
    lease = table.grant("r", 0, TOKENS)
    now[0] = 1000.0  # prefill computes for long
    table.expire()
    table.finish(lease.id, range(3), 0, [])
    with ExitStack() as older, ExitStack() as newer:
        older.enter_context(table.attached(lease.id, "r", 0, lambda: None))
        newer.enter_context(table.attached(lease.id, "r", 1, lambda: None))
        older.close()
        now[0] = 2000.0  # the transfer takes long
        table.expire()
        assert table.held == 1
    now[0] = 2029.9
    table.expire()
    assert table.held == 1
    now[0] = 2030.0
    table.expire()
    table.expire()
    assert ends == ["expired"]


def test_a_lease_says_how_long_its_finished_prompt_was_held() -> None:
    now, seconds = [5.0], list[float | None]()
    table = LeaseTable(TTL, lambda lease, end: seconds.append(lease.seconds), lambda: now[0])
    finished, dropped = table.grant("r", 0, TOKENS), table.grant("s", 0, TOKENS)
    now[0] = 7.5  # prefill computes
    table.finish(finished.id, range(3), 0, [])
    with table.attached(finished.id, "r", 0, lambda: None):
        now[0] = 8.5
    now[0] = 9.0
    table.drop(finished.id)
    table.drop(dropped.id)
    assert seconds == [1.5, None]


def test_a_lease_is_of_its_request_only() -> None:
    table = LeaseTable(TTL, lambda lease, reason: None)
    lease = table.grant("r", 0, TOKENS)
    with pytest.raises(LeaseGone, match="of request other is held"), table.attached(lease.id, "other", 1, lambda: None):
        pass
