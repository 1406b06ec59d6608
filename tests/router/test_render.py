"""Events of streams: each is one line for every client, however it splits lines, and keeps its content."""

import json
import sys
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from v4_core.sampling import Sampling
from v4_core.v1 import worker_pb2 as pb
from v4_router.generation import GenerationRequest
from v4_router.job import Job
from v4_router.output import Delta, LogprobWriter
from v4_router.render import Renderer, Usage, dumps, error_event

CUTS = [c for c in map(chr, range(sys.maxunicode + 1)) if len(f"a{c}a".splitlines()) > 1]
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(CUTS), max_size=12)
JOB = Job(
    chat=False,
    thinking=False,
    prompts=(GenerationRequest("id", b"", 1, 1, Sampling(), 0.0),),
    n=1,
    stops=(),
    stream=True,
    include_usage=True,
    return_token_ids=True,
    top_logprobs=None,
)


def said(event: str) -> Any:
    """Returns the JSON of one event, which must split into one line and an empty line."""
    line, empty = event.splitlines()
    assert not empty
    assert line.startswith("data: ")
    return json.loads(line.removeprefix("data: "))


def renderer(model: str, pieces: list[str], **changed: Any) -> Renderer:
    """Returns a renderer of a job, with this text of each token id."""
    return Renderer(replace(JOB, **changed), ("id", 1, model), LogprobWriter([piece.encode() for piece in pieces], {}))


def test_python_ends_lines_at_ten_characters() -> None:
    assert {"\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"} == set(CUTS)


@given(TEXT)
def test_json_of_any_text_is_one_line(text: str) -> None:
    line = dumps({text: [text]})
    assert line.splitlines() == [line]
    assert json.loads(line) == {text: [text]}
    assert dumps("é你🙂") == '"é你🙂"', "other text stays as it is"


@given(st.lists(TEXT, min_size=3, max_size=3), TEXT)
def test_every_event_is_one_line(pieces: list[str], model: str) -> None:
    text, own, other = pieces
    logprobs = [pb.TokenLogprobs(logprob=-1.0, top_ids=[2], top_logprobs=[-0.5])]
    delta = Delta(0, text, "", [1], logprobs, "stop")
    event = said(renderer(model, pieces, top_logprobs=1).chunk(delta))
    assert event["model"] == model
    assert event["choices"][0]["text"] == text
    assert event["choices"][0]["logprobs"]["top_logprobs"] == [{other: -0.5} | {own: -1.0}]
    chat = renderer(model, pieces, chat=True, top_logprobs=1)
    event = said(chat.chunk(Delta(0, text, other, [1], logprobs, None)))
    shown = event["choices"][0]["delta"]
    assert (shown.get("content", ""), shown.get("reasoning_content", "")) == (text, other)
    (entry,) = event["choices"][0]["logprobs"]["content"]
    assert (entry["token"], [top["token"] for top in entry["top_logprobs"]]) == (own, [other])
    assert said(chat.last(Usage(1, 0, 1), {"v4serve": text}))["v4serve"] == text
    assert said(error_event({"error": {"message": text}})) == {"error": {"message": text}}
