"""The receiver under damaged streams: a clear error each, nothing adopted, nothing written beside its slots."""

import contextlib
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kvtransfer.support import EMPTY, FINGERPRINT, filled, tiny
from v4_core.v1 import worker_pb2 as pb
from v4_kvtransfer.errors import BrokenStream, CorruptFrame, FingerprintMismatch, PullMismatch, TransferError
from v4_kvtransfer.frames import Kind, encode
from v4_kvtransfer.layout import TAIL, StreamLayout
from v4_kvtransfer.memory import HostMemory
from v4_kvtransfer.receiver import Receiver

TOKENS, HAVE = 700, 1
SOURCE = filled(tiny(), 3, seed=1)
LAYOUT = StreamLayout(SOURCE.geometry, TOKENS, HAVE)
REQUEST = pb.PullRequest(request="r", attempt=2, lease=5, fingerprint=FINGERPRINT, tokens=TOKENS, have_blocks=HAVE)
FIELDS = {"request": "r", "attempt": 2, "fingerprint": FINGERPRINT, "tokens": TOKENS, "have_blocks": HAVE}


def _hello(**changed: object) -> pb.Hello:
    return pb.Hello(**(FIELDS | {"total_bytes": LAYOUT.total} | changed))  # type: ignore[arg-type]


def _stream(size: int = 3000) -> list[bytes]:
    """A sound stream in frames of `size` bytes, an empty one among them."""
    rows = {TAIL: SOURCE.tails[0]} | dict(enumerate(SOURCE.slabs))
    payload = b"".join(rows[b][o : o + n].tobytes() for b, o, n in LAYOUT.pieces(0, LAYOUT.total))
    parts = [(Kind.HELLO, 0, _hello().SerializeToString()), (Kind.DATA, 0, b"")]
    parts += [(Kind.DATA, i, payload[i : i + size]) for i in range(0, len(payload), size)]
    parts.append((Kind.FINAL, len(payload), pb.Final(tokens=TOKENS, firsts=[pb.First(id=7)]).SerializeToString()))
    return [encode(kind, sequence, offset, [data]) for sequence, (kind, offset, data) in enumerate(parts)]


FRAMES = _stream()


class Target:
    """A receiver and the memory that it may write: blocks 0 .. 2 in slots 4, 2, 3, tail 1."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.memory: HostMemory = filled(tiny(), 6, tails=2)
        self.blocks: list[int] = []
        self.receiver = Receiver(REQUEST, self.memory, [4, 2, 3], 1, self.blocks.append, clock)

    def feed(self, frames: list[bytes]) -> None:
        for frame in frames:
            self.receiver.feed(frame)

    def check_memory(self) -> None:
        """Nothing beside the given slots was written, and each announced block is whole."""
        assert (self.memory.slabs[[0, 1, 4, 5]] == EMPTY).all()
        assert (self.memory.tails[0] == EMPTY).all()
        assert self.blocks == list(range(HAVE, HAVE + len(self.blocks)))
        for block in self.blocks:
            for offset, length in self.memory.geometry.block_spans:
                got = self.memory.slabs[[4, 2, 3][block], offset : offset + length]
                assert np.array_equal(got, SOURCE.slabs[block, offset : offset + length])


def test_a_sound_stream() -> None:
    target = Target()
    target.feed(FRAMES)
    target.check_memory()
    assert target.blocks == [1]
    assert target.receiver.final == pb.Final(tokens=TOKENS, firsts=[pb.First(id=7)])
    assert target.receiver.received == LAYOUT.total


def _damage(frames: list[bytes], how: str, rng: random.Random) -> list[bytes]:
    i = rng.randrange(len(frames))
    j = rng.choice([k for k in range(len(frames)) if k != i])
    if how == "flip":
        raw = bytearray(frames[i])
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        frames[i] = bytes(raw)
    elif how == "truncate":
        frames[i] = frames[i][: rng.randrange(len(frames[i]))]
    elif how == "drop":
        del frames[i]
    elif how == "repeat":
        frames.insert(rng.randrange(len(frames) + 1), frames[i])
    else:
        frames[i], frames[j] = frames[j], frames[i]
    return frames


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["flip", "truncate", "drop", "repeat", "swap"]), st.randoms(use_true_random=False))
def test_every_damage_is_noticed(how: str, rng: random.Random) -> None:
    target = Target()
    damaged = _damage(list(FRAMES), how, rng)
    if damaged == FRAMES[:-1]:  # only the stream's end tells: the puller then finds no final
        target.feed(damaged)
        assert target.receiver.final is None
    else:
        with pytest.raises(CorruptFrame if how in ("flip", "truncate") else BrokenStream):
            target.feed(damaged)
    target.check_memory()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=80), st.sampled_from(FRAMES)), max_size=12))
def test_any_mixture_of_frames_and_noise_is_met_with_an_error(frames: list[bytes]) -> None:
    target = Target()
    with contextlib.suppress(TransferError):
        target.feed(frames)
    assert target.receiver.final is None
    target.check_memory()


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"fingerprint": "other"}, FingerprintMismatch, r"differ in fingerprint \(f+ here, other there\)"),
        ({"request": "s"}, PullMismatch, "asked for request r, but the peer offers s"),
        ({"attempt": 1}, PullMismatch, "asked for attempt 2, but the peer offers 1"),
        ({"tokens": TOKENS + 1}, PullMismatch, "asked for tokens 700, but the peer offers 701"),
        ({"have_blocks": 0}, PullMismatch, "asked for have_blocks 1, but the peer offers 0"),
        ({"total_bytes": LAYOUT.total + 1}, PullMismatch, "announces"),
    ],
)
def test_a_hello_of_another_cache(changed: dict[str, object], error: type[Exception], message: str) -> None:
    target = Target()
    with pytest.raises(error, match=message):
        target.feed([encode(Kind.HELLO, 0, 0, [_hello(**changed).SerializeToString()])])
    assert (target.memory.slabs == EMPTY).all()


def test_too_much_too_little_and_out_of_place() -> None:
    end, count = LAYOUT.total, len(FRAMES)
    final = pb.Final(tokens=TOKENS)
    cases = [
        ([encode(Kind.DATA, 0, 0, [])], BrokenStream, "may not be DATA"),
        ([*FRAMES[:2], encode(Kind.HELLO, 2, 0, [])], BrokenStream, "may not be HELLO"),
        ([FRAMES[0], *FRAMES[2:]], BrokenStream, "frame 2 came instead of 1"),
        ([*FRAMES[:2], FRAMES[1]], BrokenStream, "frame 1 came instead of 2"),
        ([*FRAMES[:2], encode(Kind.DATA, 2, 8, [b"x"])], BrokenStream, "for byte 8 instead of 0"),
        ([*FRAMES[:-1], encode(Kind.DATA, count - 1, end, [b"x"])], BrokenStream, "more than"),
        ([*FRAMES[:1], encode(Kind.FINAL, 1, 0, [final.SerializeToString()])], BrokenStream, "ended after 0 of"),
        ([*FRAMES[:-1], encode(Kind.FINAL, count - 1, end, [b"\xff"])], CorruptFrame, "not a valid FINAL"),
        ([*FRAMES[:-1], encode(Kind.FINAL, count - 1, end, [])], PullMismatch, "the peer sent 0"),
        ([*FRAMES, encode(Kind.DATA, count, end, [])], BrokenStream, "goes on after its end"),
    ]
    for frames, error, message in cases:
        target = Target()
        with pytest.raises(error, match=message):
            target.feed(frames)
        target.check_memory()


def test_waiting_is_from_an_empty_frame_to_the_next_that_brings_something() -> None:
    now = [0.0]
    target = Target(lambda: now[0])
    sequence = [encode(Kind.DATA, i, 0, []) for i in (1, 2, 3)]
    target.feed(FRAMES[:1])
    for frame, at in zip([*sequence, encode(Kind.DATA, 4, 0, [b"x"])], [1.0, 3.0, 5.0, 6.5], strict=True):
        now[0] = at
        target.receiver.feed(frame)
    now[0] = 9.0
    target.receiver.feed(encode(Kind.DATA, 5, 1, [b"y"]))
    assert target.receiver.wait_seconds == 5.5


@pytest.mark.parametrize(("slots", "tail"), [([0, 1], 0), ([0, 1, 6], 0), ([0, 1, -1], 0), ([0, 1, 2], 2)])
def test_slots_that_are_not_there_are_refused(slots: list[int], tail: int) -> None:
    with pytest.raises(ValueError):
        Receiver(REQUEST, filled(tiny(), 6, tails=2), slots, tail, lambda block: None)
