"""Bytes are decoded to the same text however they are split into tokens."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v4_router.detokenizer import Detokenizer, byte_of_char

BYTES = [bytes([b]) for b in range(256)]


def test_the_byte_alphabet_is_a_bijection() -> None:
    assert sorted(byte_of_char().values()) == list(range(256))
    assert byte_of_char()["Ġ"] == ord(" ")


@pytest.mark.parametrize("text", ["héllo", "你好", "🙂🚀", "a\u200db"])
def test_a_character_comes_whole_with_its_last_byte(text: str) -> None:
    detokenizer = Detokenizer(BYTES)
    pieces = [detokenizer.push(byte) for byte in text.encode()]
    assert [p for p in pieces if p] == list(text)
    assert detokenizer.flush() == ""


@given(st.text(max_size=30), st.data())
def test_split_at_every_byte(text: str, data: st.DataObject) -> None:
    """Tokens may split the text anywhere, even within a character."""
    raw = text.encode(errors="ignore")
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)))) | {0, len(raw)})
    tokens = [raw[a:b] for a, b in pairwise(cuts)]
    detokenizer = Detokenizer(tokens)
    pieces = [detokenizer.push(i) for i in range(len(tokens))]
    assert "".join(pieces) + detokenizer.flush() == raw.decode()
    assert not any("\ufffd" in p for p in pieces) or "\ufffd" in text


@given(st.binary(max_size=30))
def test_broken_bytes_end_like_a_whole_decode(raw: bytes) -> None:
    detokenizer = Detokenizer(BYTES)
    assert "".join(map(detokenizer.push, raw)) + detokenizer.flush() == raw.decode(errors="replace")


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    assert Detokenizer(BYTES).push(5000) == ""
