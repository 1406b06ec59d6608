"""Leases: the caches that this worker holds for other workers to pull. Knows states and times, but no bytes or sockets.

A lease belongs to a request, not to a puller. It is held while prefill computes, while a pull is attached, and for
`ttl_seconds` after that. It ends exactly once: released by its puller, dropped, or expired. Its owner is then called
and frees the memory. Everything here runs on one thread, so a pull that calls `check()` before each read never reads
memory that was freed.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from v4_core.blocks import BLOCK_TOKENS
from v4_core.v1 import worker_pb2 as pb
from v4_kvtransfer.errors import LeaseGone, StaleAttempt, TransferError

Drop = Literal["dropped", "unneeded"]  # the request ended early; all its choices finished with their first token
End = Literal["released", "expired", Drop]  # released: the puller confirmed; expired: nobody pulled in time

_CONFIRMATION_SECONDS = 1.0  # from a pull's last frame to its confirmation; far more than a round trip


@dataclass(eq=False)
class Lease:
    """The cache of one request, held by this worker. Only the LeaseTable changes it."""

    id: int
    request: str
    attempt: int  # the highest attempt seen so far
    tokens: int  # positions of the cache once prefill has finished
    slots: list[int] = field(default_factory=list)  # block slots of the sequence, in order
    complete_blocks: int = 0  # leading blocks that no longer change
    tail: int | None = None  # slot of the tail after the last token; None while prefill computes
    firsts: list[pb.First] = field(default_factory=list)  # the first token of each choice
    pull: "Pull | None" = None
    finished_at: float = 0.0  # when prefill finished, on the table's clock
    idle_since: float = 0.0  # when prefill finished or the last pull ended
    seconds: float | None = None  # from finished_at to the lease's end; None = not ended, or prefill never finished

    @property
    def finished(self) -> bool:
        """Whether prefill has finished, so that the whole cache may be sent."""
        return self.tail is not None


class Pull:
    """One pull that is attached to a lease."""

    def __init__(self, lease: Lease, attempt: int, wake: Callable[[], None]) -> None:
        self.lease = lease
        self.attempt = attempt
        self.wake = wake  # called on every change of the lease
        self._error: TransferError | None = None

    def check(self) -> None:
        """Raises the error that ended this pull, if there is one. Call it before each read of the lease's memory."""
        if self._error is not None:
            raise self._error

    def end(self, error: TransferError) -> None:
        """End this pull: from now on check() raises `error`."""
        self._error = error
        self.wake()


class LeaseTable:
    """All leases of one worker. Calls about a lease that has ended are ignored, because its owner was notified."""

    def __init__(
        self,
        ttl_seconds: float,
        on_end: Callable[[Lease, End], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_end(lease, end)` is called exactly once per lease, when it ends."""
        self._ttl = ttl_seconds
        self._on_end = on_end
        self._clock = clock
        self._leases: dict[int, Lease] = {}
        # Random, so that after a restart a puller of the former process does not find another request's lease.
        self._next_id = secrets.randbits(62)

    @property
    def held(self) -> int:
        """The number of leases that have not ended."""
        return len(self._leases)

    @property
    def finished(self) -> int:
        """The number of leases whose prefill has finished."""
        return sum(lease.finished for lease in self._leases.values())

    def grant(self, request: str, attempt: int, tokens: int) -> Lease:
        """Creates a lease on a cache that prefill is about to compute, of `tokens` positions."""
        self._next_id += 1
        lease = Lease(self._next_id, request, attempt, tokens)
        self._leases[lease.id] = lease
        return lease

    def progress(self, lease_id: int, slots: Sequence[int], complete_blocks: int) -> None:
        """Records that the first `complete_blocks` blocks are complete and may be read.

        Raises ValueError if the number shrinks or exceeds the slots or the tokens.
        """
        if lease := self._leases.get(lease_id):
            if not lease.complete_blocks <= complete_blocks <= min(len(slots), lease.tokens // BLOCK_TOKENS):
                raise ValueError(
                    f"{complete_blocks} complete blocks in {len(slots)} slots after {lease.complete_blocks}"
                )
            lease.slots = list(slots)
            lease.complete_blocks = complete_blocks
            _wake(lease)

    def finish(self, lease_id: int, slots: Sequence[int], tail: int, firsts: Sequence[pb.First]) -> None:
        """Records that prefill has finished and the whole cache may be read.

        Raises ValueError if the number of slots does not match the tokens.
        """
        if lease := self._leases.get(lease_id):
            if len(slots) != -(-lease.tokens // BLOCK_TOKENS):
                raise ValueError(f"{len(slots)} slots do not hold {lease.tokens} tokens")
            lease.slots, lease.tail, lease.firsts = list(slots), tail, list(firsts)
            lease.complete_blocks = lease.tokens // BLOCK_TOKENS
            lease.finished_at = lease.idle_since = self._clock()
            _wake(lease)

    def drop(self, lease_id: int, why: Drop = "dropped") -> None:
        """End the lease, because nobody needs the cache. Idempotent."""
        self._end(lease_id, why, "the request has ended")

    @contextmanager
    def attached(self, lease_id: int, request: str, attempt: int, wake: Callable[[], None]) -> Iterator[Pull]:
        """Attach a pull to the lease for the context's duration. It replaces a pull that is attached already.

        A pull of the same attempt replaces it as well, because a puller may reconnect before this side notices that the
        former connection is lost. Raises LeaseGone if the lease is not held, and StaleAttempt if a higher attempt was
        seen.
        """
        lease = self._get(lease_id, request)
        if attempt < lease.attempt:
            raise StaleAttempt(f"attempt {attempt} of request {request} is over: attempt {lease.attempt} runs")
        if lease.pull is not None:
            lease.pull.end(StaleAttempt(f"another pull of request {request} took over, by attempt {attempt}"))
        pull = lease.pull = Pull(lease, attempt, wake)
        lease.attempt = attempt
        try:
            yield pull
        finally:
            if lease.pull is pull:
                lease.pull = None
                lease.idle_since = self._clock()

    def confirm(self, lease_id: int, request: str, attempt: int) -> bool:
        """Confirm a complete pull. Ends the lease and returns True if it was held without interruption until now."""
        lease = self._leases.get(lease_id)
        if lease is None or not lease.finished or (lease.request, lease.attempt) != (request, attempt):
            return False
        self._end(lease_id, "released", "the pull was confirmed")
        return True

    def in_transfer(self, lease: Lease) -> bool:
        """Whether a finished lease is being pulled, or its pull ended within 1 s and may still be confirmed."""
        recent = self._clock() - lease.idle_since < _CONFIRMATION_SECONDS
        return lease.finished and (lease.pull is not None or recent)

    def expire(self) -> None:
        """End the finished leases without a pull for `ttl_seconds`."""
        limit = self._clock() - self._ttl
        idle = [x.id for x in self._leases.values() if x.finished and x.pull is None and x.idle_since <= limit]
        for lease_id in idle:
            self._end(lease_id, "expired", f"no worker pulled it for {self._ttl:g} s")

    async def sweep(self, period: float) -> None:
        """Call expire() every `period` seconds, until cancelled."""
        while True:
            await asyncio.sleep(period)
            self.expire()

    def _get(self, lease_id: int, request: str) -> Lease:
        lease = self._leases.get(lease_id)
        if lease is None or lease.request != request:
            raise LeaseGone(f"no lease {lease_id} of request {request} is held here; prefill it again")
        return lease

    def _end(self, lease_id: int, end: End, why: str) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return
        if lease.pull is not None:
            lease.pull.end(LeaseGone(f"the lease of request {lease.request} ended: {why}"))
            lease.pull = None
        lease.seconds = self._clock() - lease.finished_at if lease.finished else None
        self._on_end(lease, end)


def _wake(lease: Lease) -> None:
    if lease.pull is not None:
        lease.pull.wake()
