"""Leases: the caches that this worker holds for another one to pull. Facts and times only; no bytes, no sockets.

A lease belongs to a request, not to a puller. It lives while prefill still computes and while a pull is attached,
then for `ttl_seconds`; it ends once, released by its puller, dropped or expired, and tells its owner, who then
frees the memory. Everything here runs on one thread, so a pull that asks `check()` before each read never reads
memory that was given back.
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

Drop = Literal["dropped", "unneeded"]  # the request was given up; it has all its tokens without a decode worker
End = Literal["released", "expired", Drop]  # by who has pulled it; by time; by whoever asked for it

_CONFIRMATION_SECONDS = 1.0  # from a pull's last frame to the word of its puller; far more than a round trip


@dataclass(eq=False)
class Lease:
    """One request's cache, held here. Written by the LeaseTable only."""

    id: int
    request: str
    attempt: int  # the highest seen
    tokens: int  # n at the end of prefill
    slots: list[int] = field(default_factory=list)  # block slots of the sequence, in order
    complete_blocks: int = 0  # leading blocks that will not change any more
    tail: int | None = None  # slot of the tail at n; None while prefill computes
    firsts: list[pb.First] = field(default_factory=list)  # first token per choice
    pull: "Pull | None" = None
    finished_at: float = 0.0  # when prefill did, in the table's clock
    idle_since: float = 0.0  # when prefill finished or the last pull left
    seconds: float | None = None  # from then to its end, once it has ended; None = prefill did not finish

    @property
    def finished(self) -> bool:
        """Prefill is done: everything may be sent."""
        return self.tail is not None


class Pull:
    """One reader of a lease, until it detaches or is ended."""

    def __init__(self, lease: Lease, attempt: int, wake: Callable[[], None]) -> None:
        self.lease = lease
        self.attempt = attempt
        self.wake = wake  # called on every change of the lease
        self._error: TransferError | None = None

    def check(self) -> None:
        """Raise what ended this pull, if something did. To be asked before every read of the lease's memory."""
        if self._error is not None:
            raise self._error

    def end(self, error: TransferError) -> None:
        """From now on check() raises."""
        self._error = error
        self.wake()


class LeaseTable:
    """All leases of one worker. Facts about a lease that has ended are ignored: its owner has been told."""

    def __init__(
        self,
        ttl_seconds: float,
        on_end: Callable[[Lease, End], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_end(lease, end)` is called once per lease."""
        self._ttl = ttl_seconds
        self._on_end = on_end
        self._clock = clock
        self._leases: dict[int, Lease] = {}
        # Not from 0: a puller that outlives this process must not find its number used by another request.
        self._next_id = secrets.randbits(62)

    @property
    def held(self) -> int:
        """Leases that have not ended."""
        return len(self._leases)

    @property
    def finished(self) -> int:
        """Those of them whose prefill is done."""
        return sum(lease.finished for lease in self._leases.values())

    def grant(self, request: str, attempt: int, tokens: int) -> Lease:
        """A lease on the cache that prefill is about to compute, `tokens` positions in the end."""
        self._next_id += 1
        lease = Lease(self._next_id, request, attempt, tokens)
        self._leases[lease.id] = lease
        return lease

    def progress(self, lease_id: int, slots: Sequence[int], complete_blocks: int) -> None:
        """The first `complete_blocks` of `slots` are complete and may be read. Raises ValueError if they cannot be."""
        if lease := self._leases.get(lease_id):
            if not lease.complete_blocks <= complete_blocks <= min(len(slots), lease.tokens // BLOCK_TOKENS):
                raise ValueError(
                    f"{complete_blocks} complete blocks in {len(slots)} slots after {lease.complete_blocks}"
                )
            lease.slots = list(slots)
            lease.complete_blocks = complete_blocks
            _wake(lease)

    def finish(self, lease_id: int, slots: Sequence[int], tail: int, firsts: Sequence[pb.First]) -> None:
        """Prefill is done: all of the sequence may be read. Raises ValueError where `slots` do not hold it."""
        if lease := self._leases.get(lease_id):
            if len(slots) != -(-lease.tokens // BLOCK_TOKENS):
                raise ValueError(f"{len(slots)} slots do not hold {lease.tokens} tokens")
            lease.slots, lease.tail, lease.firsts = list(slots), tail, list(firsts)
            lease.complete_blocks = lease.tokens // BLOCK_TOKENS
            lease.finished_at = lease.idle_since = self._clock()
            _wake(lease)

    def drop(self, lease_id: int, why: Drop = "dropped") -> None:
        """Nobody will need the cache. Idempotent."""
        self._end(lease_id, why, "the request has ended")

    @contextmanager
    def attached(self, lease_id: int, request: str, attempt: int, wake: Callable[[], None]) -> Iterator[Pull]:
        """Hold the lease for one pull, which takes over from an older one. Raises LeaseGone, StaleAttempt.

        The same attempt takes over too: its puller came back before the loss of its connection was noticed here.
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
        """The pull of this attempt is complete: True, and the lease ends, if it was held all the time until now."""
        lease = self._leases.get(lease_id)
        if lease is None or not lease.finished or (lease.request, lease.attempt) != (request, attempt):
            return False
        self._end(lease_id, "released", "the pull was confirmed")
        return True

    def in_transfer(self, lease: Lease) -> bool:
        """Whether a finished lease is being pulled, or was until a moment ago and may be about to be confirmed."""
        lately = self._clock() - lease.idle_since < _CONFIRMATION_SECONDS
        return lease.finished and (lease.pull is not None or lately)

    def expire(self) -> None:
        """End the leases that nobody has pulled for `ttl_seconds`."""
        limit = self._clock() - self._ttl
        idle = [x.id for x in self._leases.values() if x.finished and x.pull is None and x.idle_since <= limit]
        for lease_id in idle:
            self._end(lease_id, "expired", f"nobody pulled it for {self._ttl:g} s")

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
