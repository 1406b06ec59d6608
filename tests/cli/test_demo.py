from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_local import play, playing
from v4_cli.demo import MESSAGES, Exchange, events, exchange, row, run_demo
from v4_cli.errors import DeploymentError
from v4_cli.topology import LocalConfig


async def lines(given: Iterable[str]) -> AsyncIterator[str]:
    for line in given:
        yield line


def delta(text: str | None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}]}


def last(generated: int, transfer: dict[str, Any] | None) -> dict[str, Any]:
    usage = {"prompt_tokens": 9, "completion_tokens": generated, "prompt_tokens_details": {"cached_tokens": 4}}
    return {"choices": [], "usage": usage, "v4serve": {"ways": [{"transfer": transfer}]}}


async def test_both_requests_against_real_processes(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = await run_demo(LocalConfig(Path("m"), port=0), show=True, command=play)
    assert first.text == second.text == "Once upon"
    assert (first.prompt_tokens, first.generated_tokens, first.cached_tokens) == (700, 3, 512)
    assert (first.transfer_bytes, first.transfer_seconds) == (1_500_000, 0.25)
    out = capsys.readouterr().out
    assert out.startswith("> ... What happened next?")
    assert out.count("Once upon") == 1


async def test_a_deployment_that_does_not_start_shows_its_last_lines(capsys: pytest.CaptureFixture[str]) -> None:
    config = LocalConfig(Path("m"), port=0)
    with pytest.raises(DeploymentError, match=r"has ended \(exit code 3\)"):
        await run_demo(config, show=False, command=playing("dies"))
    assert "cannot load the model" in capsys.readouterr().err


async def test_events_of_a_stream() -> None:
    given = ["", ": comment", 'data: {"a": 1}', "", "data: [DONE]", 'data: {"b": 2}']
    assert [event async for event in events(lines(given))] == [{"a": 1}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ['data: {"error": {"message": "a worker failed"}}'],
            "the stream of the answer ended with an error: a worker failed",
        ),
        (['data: {"a": 1}'], r"ended without \[DONE\]"),
    ],
)
async def test_streams_that_break_off(given: list[str], message: str) -> None:
    with pytest.raises(DeploymentError, match=message):
        [event async for event in events(lines(given))]


def test_times_are_those_of_the_text() -> None:
    moved = {"bytes": 10, "seconds": 0.5}
    one = exchange([(0.9, delta(None)), (1.0, delta("a")), (1.5, delta("b")), (2.0, delta("c")), (9.0, last(5, moved))])
    assert one == Exchange(9, 5, 4, 1.0, 0.25, 10, 0.5, "abc")


def test_what_was_not_measured_is_not_shown() -> None:
    one = exchange([(1.0, delta("a")), (2.0, last(1, None))])
    assert (one.itl_seconds, one.transfer_bytes) == (None, None)
    assert row(1, one) == {
        "#": "1",
        "prompt": "9",
        "cached": "4",
        "output": "1",
        "TTFT": "1000 ms",
        "ITL": "-",
        "KV moved": "-",
        "in": "-",
    }


def test_the_prompt_is_longer_than_a_block_in_any_vocabulary() -> None:
    """Even with six characters per token, more than small vocabularies reach, the prompt has a block of 256 tokens."""
    assert len(MESSAGES[-1]["content"]) > 6 * 257
