"""`v4serve load` with real routers and fake workers."""

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections import Counter
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.terminal import Terminal
from tests.router.conftest import Deploy, Deployment, deploy, model_path, until  # noqa: F401
from v4_cli.load import Measured, quantile, question, rows, summary, texts
from v4_cli.main import run
from v4_core.v1 import worker_pb2 as pb

COMMAND = [sys.executable, "-m", "v4_cli.main", "load"]


async def start(*arguments: str, **env: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | env
    )


async def end(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def seen(*arguments: str, **env: str) -> tuple[int, dict[str, Any]]:
    code, out, err = await end(await start(*arguments, "--json", **env))
    assert err == ""
    return code, json.loads(out)


async def test_clients_measure_what_the_router_counts(deploy: Deploy) -> None:  # noqa: F811
    d: Deployment = await deploy(1, 1)
    d.prefill[0].remembers = True
    d.decode[0].step_seconds = 0.001
    code, told = await seen(d.url, "--clients", "3", "--seconds", "2")
    assert (code, told["errors"]) == (0, {})
    assert told["requests"] > 0
    for name in ("prompt_tokens", "cached_tokens", "generated_tokens"):
        metric = {"cached_tokens": "cached_prompt_tokens"}.get(name, name)
        assert told[name] == await d.metric(f"v4serve_{metric}_total") > 0, name
    assert told["requests"] == await d.metric("v4serve_requests_total", outcome="ok", endpoint="chat")
    for name in ("ttft", "itl"):
        assert 0 < told[name]["p50"] <= told[name]["p99"] < told["seconds"]
    assert len({start.tenant for start in d.prefill[0].starts}) == 1
    lengths = [len(start.prompt_ids) // 4 for start in d.prefill[0].starts]
    assert sum(lengths) == told["prompt_tokens"]
    await d.idle()


async def test_a_url_with_v1_is_accepted(deploy: Deploy) -> None:  # noqa: F811
    d: Deployment = await deploy(0, 1)
    code, told = await seen(f"{d.url.removeprefix('http://')}/v1/", "--clients", "1", "--seconds", "0.1")
    assert (code, told["errors"], told["requests"] > 0) == (0, {}, True)


async def test_errors_are_counted_by_kind(deploy: Deploy) -> None:  # noqa: F811
    d: Deployment = await deploy(1, 1)
    d.prefill[0].refuse_always = d.decode[0].refuse_always = pb.INTERNAL
    code, told = await seen(d.url, "--clients", "1", "--seconds", "0.2")
    assert code == 1
    ((what, count),) = told["errors"].items()
    assert what.startswith(("status 500: ", "status 502: ", "status 503: ")), what
    assert count >= 1
    assert told["requests"] == 0
    assert told["ttft"] == {"p50": None, "p99": None}


async def test_ctrl_c_ends_it_early_with_a_summary(deploy: Deploy) -> None:  # noqa: F811
    d: Deployment = await deploy(1, 1)
    d.decode[0].step_seconds = 0.002
    process = await start(d.url, "--clients", "2", "--seconds", "600")
    await until(lambda: len(d.decode[0].starts) >= 4, "requests run", seconds=60)
    process.send_signal(signal.SIGINT)
    code, out, err = await end(process)
    assert (code, err) == (0, "")
    assert out.startswith("2 clients, ")
    assert "generated tokens" in out
    await d.idle()


@pytest.mark.parametrize("flags", [(), ("--json",)])
async def test_in_a_terminal_the_start_is_announced(deploy: Deploy, flags: tuple[str, ...]) -> None:  # noqa: F811
    d: Deployment = await deploy(0, 1)
    command = [*COMMAND, d.url.removeprefix("http://"), "--clients", "1", "--seconds", "600", *flags]
    terminal = Terminal("/bin/sh", "-c", f"exec {shlex.join(command)} > /dev/null")
    said = f"1 client for 600 s against {d.url}; Ctrl-C ends it early\r\n"
    await until(lambda: terminal.text == said, "it tells", seconds=60)
    await until(lambda: bool(d.decode[0].starts), "requests run", seconds=60)
    terminal.press(b"\x03")
    assert await asyncio.to_thread(terminal.close) == 0
    assert terminal.text.replace("^C", "") == said


async def test_a_key_from_the_environment(deploy: Deploy, tmp_path: Path) -> None:  # noqa: F811
    keys = tmp_path / "keys.yaml"
    keys.write_text("sk-alice: alice\n")
    d: Deployment = await deploy(0, 1, api_keys=keys)
    code, told = await seen(d.url, "--clients", "1", "--seconds", "0.1", V4SERVE_API_KEY="sk-alice")
    assert (code, told["requests"] > 0) == (0, True)
    code, _, err = await end(await start(d.url))
    assert code == 1
    assert "it demands an API key; set the environment variable V4SERVE_API_KEY to one" in err


def test_nothing_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert run(["load", f"http://127.0.0.1:{port}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: no v4serve router answers at http://127.0.0.1:{port}: ")
    assert "kubectl port-forward service/NAME 8000:80" in error


@pytest.mark.parametrize("arguments", [("--clients", "0"), ("--seconds", "0"), ("--seconds", "nan"), ("tcp://a",)])
def test_wrong_arguments(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["load", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@given(st.integers(1, 20_000))
def test_texts_leave_room_in_the_context(context: int) -> None:
    longest = max(len(text.split()) for text in texts(context))
    assert longest == 1 or 2 * longest + 3 * 228 <= context


def test_texts_differ_from_their_first_word_on() -> None:
    begun = {tuple(text.split()[:3]) for text in texts(0)}
    assert len(begun) == len(texts(0)) == 4


def test_questions_differ() -> None:
    random = Random(1)
    assert len({question(random) for _ in range(100)}) == 100


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_quantiles(values: list[float], share: float) -> None:
    found = quantile(share, values)
    assert found is not None
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < ceil(share * len(values))


def test_a_summary_for_people_shows_the_commonest_errors() -> None:
    errors = Counter({f"status {i}": i for i in range(500, 510)})
    lines = dict(rows(summary(Measured(seconds=2.0, requests=10, errors=errors, prompt_tokens=400, cached_tokens=100))))
    assert lines["requests"] == "10, 5.0/s"
    assert lines["from cache"] == "25 %"
    assert lines["errors"] == "5,045"
    assert lines["ITL"] == "p50 –, p99 –"
    assert lines[""] == "505 × status 505", "the fifth and last of those that are shown"
