"""Frames: what was encoded comes back; anything else is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from v4_kvtransfer.errors import CorruptFrame, FrameError
from v4_kvtransfer.frames import HEADER_BYTES, MAX_PAYLOAD, Kind, decode, encode

PARTS = st.lists(st.binary(max_size=300), max_size=5)
FRAMES = st.builds(encode, st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), PARTS)


@given(st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), PARTS)
def test_round_trip(kind: Kind, sequence: int, offset: int, parts: list[bytes]) -> None:
    frame = decode(encode(kind, sequence, offset, parts))
    assert (frame.kind, frame.sequence, frame.offset) == (kind, sequence, offset)
    assert frame.payload == b"".join(parts)


@given(FRAMES, st.data())
def test_every_flipped_bit_is_noticed(raw: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    broken = bytearray(raw)
    broken[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptFrame):
        decode(bytes(broken))


@given(FRAMES, st.data())
def test_every_other_length_is_noticed(raw: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(CorruptFrame, match=r"announces|shorter than"):
        decode(raw[:cut])
    with pytest.raises(CorruptFrame, match="announces"):
        decode(raw + data.draw(st.binary(min_size=1, max_size=40)))


@given(st.binary(max_size=200))
def test_noise_is_refused(raw: bytes) -> None:
    with pytest.raises(FrameError):
        decode(raw)


def test_a_frame_holds_at_most_one_mebibyte() -> None:
    whole = np.zeros(MAX_PAYLOAD, np.uint8)
    assert len(encode(Kind.DATA, 0, 0, [whole.data])) == MAX_PAYLOAD + HEADER_BYTES
    with pytest.raises(ValueError, match="1048577 bytes"):
        encode(Kind.DATA, 0, 0, [whole.data, b"x"])


def test_an_unknown_kind_under_a_sound_checksum_is_refused() -> None:
    with pytest.raises(CorruptFrame, match="unknown kind 9"):
        decode(encode(9, 0, 0, []))  # type: ignore[arg-type]
