"""API keys and tenants, over the network."""

import logging
import os
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.router.conftest import MODEL, Deploy, until
from v4_core.errors import ConfigError
from v4_router.policy import Policy
from v4_router.status import fleet_status

PROMPT = [10] * 600
ALICE = {"authorization": "Bearer sk-alice-1"}
BOB = {"authorization": "Bearer sk-bob-1"}


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key file with two tenants; the router sees a change at once."""
    monkeypatch.setattr("v4_core.reloading._POLL_SECONDS", 0.01)
    file = tmp_path / "keys.yaml"
    file.write_text("sk-alice-1: alice\nsk-alice-2: alice\nsk-bob-1: bob\n")
    return file


def write(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="none"),
        pytest.param({"authorization": "Bearer sk-alice-"}, id="part of one"),
        pytest.param({"authorization": "Bearer"}, id="empty"),
        pytest.param({"authorization": "sk-alice-1"}, id="no scheme"),
        pytest.param({"authorization": "Basic sk-alice-1"}, id="another scheme"),
        pytest.param({"x-api-key": "sk-alice-1"}, id="another header"),
    ],
)
async def test_nothing_without_a_known_key(deploy: Deploy, keys: Path, headers: dict[str, str]) -> None:
    d = await deploy(0, 1, api_keys=keys)
    for path in ("/v1/models", "/v1/models/tiny", "/metrics", "/nowhere", "/health/", "//health", "/health/../metrics"):
        answer = await d.http.get(path, headers=headers)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert "Authorization: Bearer KEY" in error["message"]
    assert (await d.complete(PROMPT, headers=headers)).status_code == 401
    assert (await d.chat([{"role": "user", "content": "x"}], headers=headers)).status_code == 401
    assert not d.decode[0].starts
    for path in ("/health", "/ready"):
        assert (await d.http.get(path, headers=headers)).status_code == 200


async def test_the_official_client_with_a_key(deploy: Deploy, keys: Path) -> None:
    d = await deploy(0, 1, api_keys=keys)
    known = d.openai.with_options(api_key="sk-alice-1")
    answer = await known.completions.create(model=MODEL, prompt=PROMPT, max_tokens=3)
    assert answer.usage is not None
    with pytest.raises(openai.AuthenticationError):
        await d.openai.completions.create(model=MODEL, prompt=PROMPT, max_tokens=3)
    assert (await d.http.get("/v1/models", headers={"authorization": "bearer  sk-bob-1"})).status_code == 200


async def test_tenants_share_no_cache(deploy: Deploy, keys: Path) -> None:
    """A tenant gets no cached tokens of another, and placement does not reveal what another has cached."""
    d = await deploy(1, 1, api_keys=keys)
    d.prefill[0].remembers = True

    async def ask(headers: dict[str, str]) -> tuple[int, str]:
        answer = await d.complete(PROMPT, max_tokens=2, headers=headers)
        details: dict[str, Any] = answer.json()["usage"]["prompt_tokens_details"]
        return details["cached_tokens"], answer.headers["x-v4serve-route"].rpartition("reason=")[2]

    assert await ask(ALICE) == (0, "least-queued")
    assert await ask(ALICE) == (512, "prefix")
    assert await ask(BOB) == (0, "least-queued")
    assert await ask({"authorization": "Bearer sk-alice-2"}) == (512, "prefix")
    assert await ask(BOB) == (512, "prefix")
    assert {s.tenant for s in d.prefill[0].starts} == {b"alice", b"bob"}
    assert {s.tenant for s in d.decode[0].starts} == {b"alice", b"bob"}


async def test_keys_change_without_a_restart(deploy: Deploy, keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    d = await deploy(0, 1, api_keys=keys, policy=Policy(key_overlap_seconds=0.0))
    write(keys, "sk-carol-1: carol\n")
    await until(lambda: d.router.keys is not None and d.router.keys.tenant(b"sk-carol-1") == "carol", "read")
    assert (await d.http.get("/v1/models", headers=ALICE)).status_code == 401
    carol = {"authorization": "Bearer sk-carol-1"}
    assert (await d.http.get("/v1/models", headers=carol)).status_code == 200
    with caplog.at_level(logging.ERROR):
        write(keys, "sk-dave-1: [dave\n")
        await until(lambda: "is not valid YAML" in caplog.text, "a log line about the broken file")
    assert (await d.http.get("/v1/models", headers=carol)).status_code == 200


async def test_removed_keys_stay_valid_while_other_routers_may_not_have_the_new_ones(
    deploy: Deploy, keys: Path
) -> None:
    """Routers read a change at different times; until both have, only the removed key is accepted by both."""
    first = await deploy(0, 1, api_keys=keys)
    assert first.router.keys is not None
    before = fleet_status(first.router)["router"]["keys_since"]
    write(keys, "sk-carol-1: carol\n")
    os.utime(keys, (4e9, 4e9))
    await until(lambda: first.router.keys.tenant(b"sk-carol-1") == "carol", "read")
    assert (await first.http.get("/v1/models", headers=ALICE)).status_code == 200
    assert (await first.http.get("/v1/models", headers={"authorization": "Bearer sk-carol-1"})).status_code == 200
    assert fleet_status(first.router)["router"]["keys_since"] == "2096-10-02T07:06:40Z" > before
    first.router.fleet.policy = Policy(key_overlap_seconds=0.0)
    assert (await first.http.get("/v1/models", headers=ALICE)).status_code == 401


async def test_keys_are_never_logged(deploy: Deploy, keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        d = await deploy(1, 1, api_keys=keys)
        await d.complete(PROMPT, max_tokens=2, headers=ALICE)
        await d.complete(PROMPT, max_tokens=2, headers={"authorization": "Bearer sk-eve-1"})
        write(keys, "sk-carol-1: carol\nsk-dave-1: [\n")
        await until(lambda: "is not valid YAML" in caplog.text, "a log line about the broken file")
    assert not [r for r in caplog.records if "sk-" in r.getMessage() and r.name.startswith("v4")]


async def test_a_refusal_is_counted_and_logged(deploy: Deploy, keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    d = await deploy(0, 1, api_keys=keys)
    caplog.set_level(logging.INFO, "v4serve.request")
    headers = {"authorization": "Bearer sk-eve-1", "x-request-id": "mine"}
    for path, endpoint in (
        ("/v1/completions", "completions"),
        ("/v1/chat/completions", "chat"),
        ("/sk-mallory", "other"),
    ):
        caplog.clear()
        answer = await d.http.post(path, json={}, headers=headers)
        assert (answer.status_code, answer.headers["x-request-id"]) == (401, "mine")
        assert d.router.metrics.requests.labels(endpoint, "401")._value.get() == 1
        await until(lambda: bool(caplog.records), "the line of the request")
        (record,) = caplog.records
        fields = dict(record.__dict__["fields"])
        assert (record.name, record.levelname, fields.pop("total_seconds") >= 0) == ("v4serve.request", "INFO", True)
        told = {"request_id": "mine", "endpoint": endpoint, "outcome": "401", "error": "invalid_api_key"}
        assert fields == told
        assert "sk-" not in record.getMessage()
    answer = await d.http.post("/v1/completions", headers={"x-request-id": "not mine"})
    assert answer.headers["x-request-id"] not in ("", "not mine")
    assert d.router.metrics.without_token._value.get() == 0


def test_a_router_does_not_start_with_broken_keys(keys: Path, model_path: Path) -> None:
    from v4_router.config import RouterConfig
    from v4_router.router import Router

    keys.write_text("")
    with pytest.raises(ConfigError, match="at least one line"):
        Router(RouterConfig(model_path, MODEL, decode=("a:1",), api_keys=keys))
