"""Checks the frames of one pull and writes their bytes to memory. Knows no socket and no lease."""

import time
from collections.abc import Callable, Sequence

import numpy as np
from google.protobuf.message import DecodeError

from v4_core.fingerprint import difference
from v4_core.v1 import worker_pb2 as pb
from v4_kvtransfer.errors import BrokenStream, CorruptFrame, FingerprintMismatch, PullMismatch
from v4_kvtransfer.frames import Frame, Kind, decode
from v4_kvtransfer.layout import TAIL, StreamLayout
from v4_kvtransfer.memory import HostMemory


class Receiver:
    """Checks the frames of one pull in order and writes their bytes to the given slots.

    A frame is verified before any of its bytes is written. A block has arrived when its last byte is written.
    """

    def __init__(
        self,
        request: pb.PullRequest,
        memory: HostMemory,
        slots: Sequence[int],
        tail: int,
        on_block: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`slots` has the receiver's slot of every block.

        Raises PullMismatch if `request` is contradictory, and ValueError if a slot is missing or out of range.
        """
        self._request = request
        self._memory = memory
        self._slots = slots
        self._tail = tail
        self._on_block = on_block
        self._clock = clock
        self._layout = StreamLayout(memory.geometry, request.tokens, request.have_blocks)
        if len(slots) != self._layout.blocks:
            raise ValueError(f"{len(slots)} slots for {self._layout.blocks} blocks")
        if not (0 <= tail < len(memory.tails) and all(0 <= slot < len(memory.slabs) for slot in slots)):
            raise ValueError("a slot or the tail lies outside the memory")
        self._sequence = 0
        self._arrived = request.have_blocks
        self._dry_since: float | None = None
        self.received = 0  # bytes of the stream
        self.wait_seconds = 0.0
        self.final: pb.Final | None = None

    def feed(self, raw: bytes) -> None:
        """Process the next frame.

        Raises FrameError, FingerprintMismatch or PullMismatch before it writes anything of an invalid frame.
        """
        frame = decode(raw)
        if self.final is not None:
            raise BrokenStream("the stream goes on after its end")
        if frame.sequence != self._sequence:
            raise BrokenStream(f"frame {frame.sequence} came instead of {self._sequence}: lost, repeated or reordered")
        if frame.offset != self.received:
            raise BrokenStream(f"frame {frame.sequence} is for byte {frame.offset} instead of {self.received}")
        if (frame.kind == Kind.HELLO) != (self._sequence == 0):
            raise BrokenStream(f"frame {frame.sequence} may not be {frame.kind.name}")
        self._sequence += 1
        self._count_waiting(frame)
        if frame.kind == Kind.HELLO:
            self._check_hello(frame)
        elif frame.kind == Kind.DATA:
            self._write(frame.payload)
        else:
            self._finish(frame)

    def _count_waiting(self, frame: Frame) -> None:
        if frame.kind == Kind.DATA and not frame.payload:
            self._dry_since = self._dry_since or self._clock()
        elif self._dry_since is not None:
            self.wait_seconds += self._clock() - self._dry_since
            self._dry_since = None

    def _check_hello(self, frame: Frame) -> None:
        hello, asked = pb.Hello(), self._request
        _parse(hello, frame)
        if hello.fingerprint != asked.fingerprint:
            raise FingerprintMismatch(
                "this worker cannot continue the peer's state: they differ in "
                f"{difference(asked.fingerprint, hello.fingerprint)}; pair workers of one revision"
            )
        for name, wanted, offered in (
            ("request", asked.request, hello.request),
            ("attempt", asked.attempt, hello.attempt),
            ("tokens", asked.tokens, hello.tokens),
            ("have_blocks", asked.have_blocks, hello.have_blocks),
        ):
            if offered != wanted:
                raise PullMismatch(f"the pull asked for {name} {wanted}, but the peer offers {offered}")
        if hello.total_bytes != self._layout.total:
            raise PullMismatch(f"the peer announces {hello.total_bytes} bytes instead of {self._layout.total}")

    def _write(self, payload: memoryview) -> None:
        end = self.received + len(payload)
        if end > self._layout.total:
            raise BrokenStream(f"the stream has more than the expected {self._layout.total} bytes")
        source, position = np.frombuffer(payload, np.uint8), 0
        for block, offset, length in self._layout.pieces(self.received, end):
            row = self._memory.tails[self._tail] if block == TAIL else self._memory.slabs[self._slots[block]]
            row[offset : offset + length] = source[position : position + length]
            position += length
        self.received = end
        before, self._arrived = self._arrived, self._layout.arrived(end)
        for block in range(before, self._arrived):
            self._on_block(block)

    def _finish(self, frame: Frame) -> None:
        if self.received != self._layout.total:
            raise BrokenStream(f"the stream ended after {self.received} of {self._layout.total} bytes")
        final = pb.Final()
        _parse(final, frame)
        if final.tokens != self._request.tokens:
            raise PullMismatch(f"the pull asked for {self._request.tokens} tokens, but the peer sent {final.tokens}")
        self.final = final


def _parse(message: pb.Hello | pb.Final, frame: Frame) -> None:
    try:
        message.ParseFromString(frame.payload.tobytes())
    except DecodeError:
        raise CorruptFrame(
            f"frame {frame.sequence} is not a valid {frame.kind.name}: run the same release on all workers"
        ) from None
