"""Chat messages to prompt segments, by DeepSeek V4's encoding (reference 4.1 to 4.3).

Pure: knows the markup, not the tokenizer. A prompt is a sequence of special tokens, by name, and of plain texts; text
that looks like a special token stays text. System, user and assistant only.
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
    reasoning: str = ""  # of an assistant


def encode_chat(messages: Sequence[Message], mode: Mode, keep_reasoning: bool = False) -> list[Segment]:
    """The prompt whose continuation is the assistant's next turn.

    Reasoning of turns ahead of the last user message is dropped unless `keep_reasoning`. No two neighbours of the
    result are both texts and no text is empty. Raises BadRequest when there is no turn to answer.
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
    """Neighbouring texts as one: they are one string to the tokenizer's merges."""
    result: list[Segment] = []
    for segment in segments:
        if isinstance(segment, str) and result and isinstance(result[-1], str):
            result[-1] += segment
        elif segment != "":
            result.append(segment)
    return result
