"""Encodes chat messages as prompt segments, by DeepSeek V4's chat encoding (reference 4.1 to 4.3).

Pure: knows the markup, not the tokenizer. A prompt is a sequence of special tokens, given by name, and plain texts. A
text that looks like a special token stays text. Only the roles system, user and assistant are supported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from v4_router.errors import BadRequest

Mode = Literal["chat", "thinking"]

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
THINK_END = "</think>"
MARKERS = (BOS, EOS, USER, ASSISTANT, THINK, THINK_END)


@dataclass(frozen=True, slots=True)
class Special:
    """A special token, by name."""

    name: str


Segment = Special | str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn."""

    role: Literal["system", "user", "assistant"]
    content: str
    reasoning: str = ""  # assistant messages only


def encode_chat(messages: Sequence[Message], mode: Mode, keep_reasoning: bool = False) -> list[Segment]:
    """Returns the prompt that the assistant's next turn continues.

    The reasoning of turns before the last user message is dropped unless `keep_reasoning` is set. In the result no text
    is empty and no two texts are adjacent. Raises BadRequest if there is no message, or if the last one is the
    assistant's.
    """
    if not messages:
        raise BadRequest("messages is empty: send at least one message", "messages")
    if messages[-1].role == "assistant":
        raise BadRequest("the last message is from the assistant: end with a user or system message", "messages")
    last_user = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    segments: list[Segment] = [Special(BOS)]
    for i, message in enumerate(messages):
        thinks = mode == "thinking" and (keep_reasoning or i >= last_user)
        if message.role == "assistant":
            if thinks:
                segments += [message.reasoning, Special(THINK_END)]
            segments += [message.content, Special(EOS)]
            continue
        if message.role == "user":
            segments.append(Special(USER))
        segments.append(message.content)
        if i + 1 == len(messages) or messages[i + 1].role == "assistant":
            segments += [Special(ASSISTANT), Special(THINK if thinks else THINK_END)]
    return _joined(segments)


def _joined(segments: list[Segment]) -> list[Segment]:
    """Joins adjacent texts, since the tokenizer's merges must see them as one string."""
    result: list[Segment] = []
    for segment in segments:
        if isinstance(segment, str) and result and isinstance(result[-1], str):
            result[-1] += segment
        elif segment != "":
            result.append(segment)
    return result
