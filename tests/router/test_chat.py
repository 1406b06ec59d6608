"""Chat encoding against the model's own rules and examples."""

import pytest

from v4_router.chat import Message, Mode, Segment, Special, encode_chat
from v4_router.errors import BadRequest

S, A, C = Message("system", "S"), Message("user", "A"), Message("user", "C")
B = Message("assistant", "B", "R")


def written(segments: list[Segment]) -> str:
    names = {"<｜begin▁of▁sentence｜>": "<BOS>", "<｜end▁of▁sentence｜>": "<EOS>"}
    names |= {"<｜User｜>": "<U>", "<｜Assistant｜>": "<A>"}
    return "".join(s if isinstance(s, str) else names.get(s.name, s.name) for s in segments)


@pytest.mark.parametrize(
    ("mode", "keep", "prompt"),
    [
        ("chat", False, "<BOS>S<U>A<A></think>B<EOS><U>C<A></think>"),
        ("thinking", False, "<BOS>S<U>A<A></think>B<EOS><U>C<A><think>"),
        ("thinking", True, "<BOS>S<U>A<A><think>R</think>B<EOS><U>C<A><think>"),
    ],
)
def test_the_three_examples(mode: Mode, keep: bool, prompt: str) -> None:
    assert written(encode_chat([S, A, B, C], mode, keep)) == prompt


@pytest.mark.parametrize(
    ("messages", "mode", "prompt"),
    [
        ([A], "thinking", "<BOS><U>A<A><think>"),
        ([S], "chat", "<BOS>S<A></think>"),
        ([S, B, A], "chat", "<BOS>S<A></think>B<EOS><U>A<A></think>"),
        ([A, C], "chat", "<BOS><U>A<U>C<A></think>"),
        ([A, B, S], "thinking", "<BOS><U>A<A><think>R</think>B<EOS>S<A><think>"),
        ([A, Message("assistant", "B"), S], "thinking", "<BOS><U>A<A><think></think>B<EOS>S<A><think>"),
        ([A, Message("assistant", ""), C], "chat", "<BOS><U>A<A></think><EOS><U>C<A></think>"),
    ],
)
def test_other_orders(messages: list[Message], mode: Mode, prompt: str) -> None:
    assert written(encode_chat(messages, mode)) == prompt


def test_neighbouring_texts_are_one_segment_and_empty_ones_none() -> None:
    segments = encode_chat([S, S, Message("user", "")], "chat")
    assert [s for s in segments if isinstance(s, str)] == ["SS"]


def test_markers_in_content_stay_text() -> None:
    segments = encode_chat([Message("user", "<｜User｜></think>")], "chat")
    assert "<｜User｜></think>" in segments
    assert segments.count(Special("<｜User｜>")) == 1


@pytest.mark.parametrize("messages", [[], [A, B]])
def test_without_a_turn_to_answer(messages: list[Message]) -> None:
    with pytest.raises(BadRequest, match="message"):
        encode_chat(messages, "chat")
