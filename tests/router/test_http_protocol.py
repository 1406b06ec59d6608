"""Clients that send endless headers, or endless data after a body."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.router.conftest import Deploy
from v4_router import http_protocol

GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"POST /v1/models HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


async def sent(url: str, first: bytes, endless: bytes = b"") -> bytes:
    """Returns everything that the router sends until it closes the connection."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(first)
        for _ in range(64 if endless else 0):  # far more than the limit: a server that read all of it would not answer
            writer.write(endless * (16384 // len(endless)))
            await writer.drain()
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionError:  # the router closed the connection while data was still being sent
        return b"reset"
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("first", "endless"),
    [
        pytest.param(b"GET /", b"x", id="path"),
        pytest.param(GET + b"a: ", b"x", id="one header"),
        pytest.param(GET, b"a: b\r\n", id="many headers"),
        pytest.param(CHUNKED + b"0\r\na: ", b"x", id="one trailer"),
        pytest.param(CHUNKED + b"0\r\n", b"a: b\r\n", id="many trailers"),
        pytest.param(CHUNKED + b"1;", b"x", id="chunk extension"),
    ],
)
async def test_endless_headers_end_the_connection(deploy: Deploy, tmp_path: Path, first: bytes, endless: bytes) -> None:
    (tmp_path / "keys").write_text("key: tenant")
    d = await deploy(0, 1, api_keys=tmp_path / "keys")
    answer = await sent(d.url, first, endless)
    assert answer == b"reset" or b"longer than 64 KiB" in answer


async def test_headers_and_bodies_within_the_limits_are_read(deploy: Deploy) -> None:
    d = await deploy(0, 1)
    long = {"x-long": "x" * (http_protocol.MOST_BYTES - 1000)}
    for _ in range(3):
        assert (await d.http.get("/v1/models", headers=long)).status_code == 200
    body = b"[" + b" " * (1 << 20)
    for content in (body, _pieces(body)):
        assert (await d.http.post("/v1/completions", content=content)).status_code == 400  # read whole, but not JSON


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 50_000):
        yield body[start : start + 50_000]


@pytest.mark.parametrize("first", [b"", b"GET /v1", GET, GET + b"\r\n" + GET])
async def test_headers_that_do_not_come_end_the_connection(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "_HEAD_SECONDS", 0.2)
    d = await deploy(0, 1)
    answer = await sent(d.url, first)
    assert answer.count(b"200 OK") == first.count(b"\r\n\r\n")


async def test_a_long_answer_is_no_slow_request(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "_HEAD_SECONDS", 0.2)
    d = await deploy(0, 1)
    d.decode[0].step_seconds = 0.02
    answer = await d.complete([10], max_tokens=30)
    assert answer.json()["usage"]["completion_tokens"] == 30
