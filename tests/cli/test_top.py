"""`v4serve top` with real routers and fake workers. test_top_view.py tests its frames."""

import asyncio
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from tests.cli.terminal import Terminal
from tests.router.conftest import Deploy, Deployment, deploy, listening, model_path, until  # noqa: F401
from tests.router.test_facts import known, worker
from v4_cli.errors import Unreachable
from v4_cli.main import run
from v4_cli.top import base, fetch_facts, watch
from v4_router.app import build_monitoring_app
from v4_router.facts import Facts

COMMAND = [sys.executable, "-m", "v4_cli.main", "top"]


@contextmanager
def answering(bodies: Mapping[str, bytes], status: int = 200, port: int = 0) -> Iterator[str]:
    """Yields the URL of a server with these answers by path."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(bodies.get(self.path, b""))

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


async def once(url: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--once", url, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "COLUMNS": "80"}
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_one_frame_of_a_router_that_works(deploy: Deploy) -> None:  # noqa: F811
    d: Deployment = await deploy(1, 2)
    d.decode[0].step_seconds = d.decode[1].step_seconds = 0.01
    running = asyncio.create_task(d.complete([10] * 300, max_tokens=1_000))
    looking = asyncio.create_task(once(d.url))
    requests = 0
    while not looking.done():
        await d.complete([10] * 300, max_tokens=5)
        requests += 1
    code, out, err = looking.result()
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert re.search(r"v4serve tiny  ready +127\.0\.0\.1:\d+", out)
    rates = {
        name: float(value.replace(",", ""))
        for name, value in re.findall(r"(requests|prompt|generated) +([\d.,]+)", out)
    }
    # Rates are over at least one second of the test's time, and rounded to one decimal or to a whole number.
    assert 0 < rates["requests"] <= requests + 0.5
    assert 0 < rates["prompt"] <= await d.metric("v4serve_prompt_tokens_total") + 0.5
    assert 0 < rates["generated"] <= await d.metric("v4serve_generated_tokens_total") + 0.5
    assert re.search(r"TTFT( +[\d.]+ m?s){3}", out)
    assert re.search(r"ITL( +[\d.]+ m?s){3}", out)
    assert re.search(r"transfers +[\d.]+ k?B/s, [\d.]+/s", out)
    assert re.search(r"4\.0 kB/s each", out), "fake workers move 1000 bytes in 0.25 s, after a wait"
    assert "Prefill  1 of 1 ready" in out
    assert "Decode  2 of 2 ready" in out
    for one in d.workers:
        assert one.address in out
    running.cancel()


async def test_the_monitoring_port_of_a_router_with_keys(deploy: Deploy, tmp_path: Path) -> None:  # noqa: F811
    keys = tmp_path / "keys.yaml"
    keys.write_text("sk-alice: alice\n")
    d: Deployment = await deploy(0, 1, api_keys=keys)
    with pytest.raises(Unreachable, match="answers 401 to /facts; it demands an API key"):
        await asyncio.to_thread(fetch_facts, d.url)
    async with listening(build_monitoring_app(d.router)) as url:
        assert (await asyncio.to_thread(fetch_facts, url)).router.served_name == "tiny"


def test_nothing_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert run(["top", f"http://127.0.0.1:{port}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        f"error: no v4serve router answers at http://127.0.0.1:{port}: Connection refused; start a router"
    )
    assert "kubectl port-forward deploy/NAME-router 9100" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("body", "status", "reason"), [
    (b"<html>", 200, "the answer is not that of a router"), (b"[]", 200, "the answer is not that"),
    (b"\xff", 200, "the answer is not that of a router"), (b'{"revisions": []}', 200, "the answer is not that"),
    (b"", 404, "answers 404 to /facts"),
])  # fmt: skip
def test_something_else_answers(body: bytes, status: int, reason: str) -> None:
    with answering({"/facts": body}, status) as url, pytest.raises(Unreachable, match=reason):
        fetch_facts(url)


@pytest.mark.parametrize("part", ["router", "pools", "revisions", "served_name"])
def test_an_answer_with_a_missing_field_is_refused(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = asdict(known(worker("decode", "d-1")))
    del (told if part in told else told["router"])[part]
    with answering({"/facts": json.dumps(told).encode()}) as url:
        assert run(["top", "--once", url]) == 1
        error = capsys.readouterr().err
    assert error.startswith(
        f"error: no v4serve router answers at {url}: the answer is not that of a router of this version"
    )
    assert error.count("\n") == 1


@pytest.mark.parametrize("url", [
    "", "ftp://a", "http://", "http://a:port", "a:port", "http://[::1", ":8000", "http://a?b=c", "a#b", "a b",
])  # fmt: skip
def test_invalid_urls(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", url]) == 2
    assert "is not the URL of a router: give one such as http://127.0.0.1:8000" in capsys.readouterr().err


@pytest.mark.parametrize("given", [
    "127.0.0.1:PORT", "http://127.0.0.1:PORT/", "http://127.0.0.1:PORT/v1", "127.0.0.1:PORT/v1/",
])  # fmt: skip
def test_urls_are_accepted_as_curl_and_api_clients_take_them(
    given: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("v4_cli.top._EVERY_SECONDS", 0.01)
    with answering({"/facts": json.dumps(asdict(known(worker("decode", "d-1")))).encode()}) as url:
        assert run(["top", "--once", given.replace("PORT", url.rpartition(":")[2])]) == 0
    assert "d-1" in capsys.readouterr().out


def test_addresses_below_a_path() -> None:
    assert base("https://host/chat/v1") == "https://host/chat"
    assert base("host:80/v1beta") == "http://host:80/v1beta"
    assert base(" http://host ") == "http://host"


async def test_without_a_terminal_only_one_frame(deploy: Deploy) -> None:  # noqa: F811
    d: Deployment = await deploy(0, 1)
    process = await asyncio.create_subprocess_exec(
        *COMMAND, d.url, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    _, err = await process.communicate()
    assert (process.returncode, err.decode()) == (2, "error: top needs a terminal: use --once to print one frame\n")


@pytest.mark.parametrize("keys", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
async def test_it_follows_a_router_until_a_key(deploy: Deploy, keys: bytes) -> None:  # noqa: F811
    d: Deployment = await deploy(1, 1)
    terminal = Terminal(*COMMAND, d.url)
    await until(lambda: "1 of 1 ready" in terminal.text, "a frame", seconds=60)
    d.decode[0].step_seconds = 0.02
    running = asyncio.create_task(d.complete([10], max_tokens=3_000))
    await until(lambda: "Decode  1 of 1 ready, 1 running" in terminal.text, "it follows", seconds=60)
    running.cancel()
    terminal.press(keys)
    assert await asyncio.to_thread(terminal.close) == 0
    assert terminal.output.endswith(b"\x1b[?25h\x1b[?1049l"), "cursor and screen are as before"
    assert terminal.restored


async def test_a_router_that_stops_answering_and_comes_back() -> None:
    told = {"/facts": json.dumps(asdict(known(worker("decode", "d-1")))).encode()}
    with answering(told) as url:
        terminal = Terminal(*COMMAND, url)
        await until(lambda: "Decode  1 of 1 ready" in terminal.text, "a frame", seconds=60)
    silent = re.compile(r"no answer since \d\d:\d\d:\d\d: Connection refused")
    await until(lambda: silent.search(terminal.text) is not None, "it says that nothing answers", seconds=60)
    with answering(told, port=int(url.rpartition(":")[2])):
        latest = re.compile("v4serve m  (?:ready|no answer)")
        await until(lambda: not silent.search(latest.split(terminal.text)[-2]), "it has recovered", seconds=60)
        assert terminal.process.poll() is None
    terminal.press(b"q")
    assert await asyncio.to_thread(terminal.close) == 0


def test_stale_since_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances by 5 s while the command waits for an answer."""
    clock = iter(["12:00:00", "12:00:01"])
    answers = iter([known(worker("decode", "d-1")), None, None])
    keys = iter(["", "", "", "q"])

    def answer(url: str) -> Facts:
        found = next(answers)
        if found is None:
            raise Unreachable(url, "timed out", "wait")
        return found

    monkeypatch.setattr("v4_cli.top._clock", lambda: next(clock, "12:00:06"))
    monkeypatch.setattr("v4_cli.top.fetch_facts", answer)
    with open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, width=80, record=True)
        with Live(console=console, auto_refresh=False) as live:
            watch("http://127.0.0.1:8000", known(worker("decode", "d-1")), live, lambda seconds: next(keys))
        seen = re.findall("no answer since.*", console.export_text())
    assert set(seen) == {"no answer since 12:00:01: timed out"}
