"""What a user sees after `helm install` and `kubectl apply`: a served model, its key, its status."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import openai
import pytest

from tests.cluster.installed import NAME, NAMESPACE, READY_SECONDS, Installed

pytestmark = pytest.mark.cluster

PROMPT = "There was a small boat on the sea"
TOKENS = 48


@pytest.fixture
def client(demo: Installed) -> Iterator[openai.OpenAI]:
    """The official client with the key that was made."""
    with demo.url() as url, openai.OpenAI(base_url=f"{url}/v1", api_key=demo.key(), max_retries=0) as made:
        yield made


def test_the_demo_is_ready_in_time(installed: Installed) -> None:
    print(f"Ready after {installed.ready_seconds:.1f} s")
    assert installed.ready_seconds < READY_SECONDS


def test_tokens_are_those_of_generate(client: openai.OpenAI) -> None:
    command = [sys.executable, "-m", "v4_cli.main", "generate", "--json", "--temperature=0", f"--max-tokens={TOKENS}"]
    offline = json.loads(subprocess.check_output([*command, "--prompt", PROMPT]))
    completion = client.completions.create(
        model=NAME, prompt=PROMPT, max_tokens=TOKENS, temperature=0, extra_body={"return_token_ids": True}
    )
    [choice] = completion.choices
    assert choice.token_ids == offline["token_ids"]  # type: ignore[attr-defined]
    assert choice.text == offline["text"]


def test_a_chat(client: openai.OpenAI) -> None:
    chunks = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=12, stream=True
    )
    said = [choice for chunk in chunks for choice in chunk.choices]
    assert said[-1].finish_reason in ("length", "stop")
    assert "".join(choice.delta.content or "" for choice in said)


def test_nobody_is_answered_without_the_key(installed: Installed) -> None:
    with installed.url() as url, openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError, match="API key"):
            stranger.completions.create(model=NAME, prompt=PROMPT)
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()


def test_status(demo: Installed) -> None:
    status = demo.v4d()["status"]
    assert status["endpoint"] == f"http://{NAME}.{NAMESPACE}.svc:80/v1"
    assert status["model"] == NAME
    assert status["image"] == demo.cluster.image
    for pool in ("prefill", "decode"):
        found = status[pool]
        assert (found["summary"], found["desired"], found["ready"], found["updated"]) == ("1/1", 1, 1, 1)
        assert found["revision"] == status["revision"]
    assert status["router"].pop("keysSince") <= datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert status["router"] == {"desired": 1, "ready": 1}
    assert status["transport"]["name"] == "grpc"
    assert status["transport"]["bytesPerSecond"] > 0
    capacity = status["capacity"]
    assert capacity["plannedTokens"] == capacity["reportedTokens"] > 0
    assert capacity["plannedSlotsPerWorker"] == capacity["reportedSlotsPerWorker"] > 0
    [selected] = demo.get("pods", "--selector", status["decode"]["selector"])["items"]
    assert selected["status"]["containerStatuses"][0]["restartCount"] == 0


def test_columns(demo: Installed) -> None:
    head, row = demo.kubectl("get", "v4d").splitlines()
    assert head.split() == ["NAME", "READY", "PREFILL", "DECODE", "MODEL", "AGE"]
    assert row.split()[:-1] == [NAME, "True", "1/1", "1/1", NAME]
    assert f"v4deployment.v4serve.dev/{NAME}" in demo.kubectl("get", "all,v4d", "-o", "name").split()


def test_an_idle_deployment_is_not_written(demo: Installed) -> None:
    """The operator looks at it again, and finds nothing to do."""
    demo.replace_operator()  # which takes in the rate of transfers that other tests caused
    before = demo.versions()
    demo.replace_operator()
    assert demo.versions() == before
    assert demo.writes() == 0
