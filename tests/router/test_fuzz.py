"""Arbitrary bodies: each is served, or refused with an OpenAI error, and none causes an internal error."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.router.conftest import Deploy, Deployment
from v4_router.errors import BadRequest
from v4_router.schemas import ChatBody, CompletionBody, parse

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
ANY = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner))
NAMES = st.sampled_from([*CompletionBody.model_fields, *ChatBody.model_fields, "tools", "echo", "promt"])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool", "x"]), "content": st.text(max_size=8) | ANY}
    ),
    max_size=3,
)
BODIES = st.dictionaries(NAMES, ANY | st.integers(0, 3), max_size=4)
VALID = st.fixed_dictionaries({"prompt": st.just([10]), "messages": MESSAGES, "max_tokens": st.integers(1, 3)})


def refused(error: BadRequest) -> None:
    """It says why."""
    assert len(str(error)) > 10
    assert error.body()["error"]["type"] == "invalid_request_error"


@given(BODIES | ANY, st.sampled_from([CompletionBody, ChatBody]))
def test_parsing_gives_a_body_or_a_bad_request(value: Any, model: type[CompletionBody] | type[ChatBody]) -> None:
    try:
        parse(model, json.dumps(value).encode())
    except BadRequest as error:
        refused(error)


@given(st.binary(max_size=40))
def test_parsing_bytes(raw: bytes) -> None:
    try:
        parse(CompletionBody, raw)
    except BadRequest as error:
        refused(error)


async def test_over_the_network(deploy: Deploy) -> None:
    d: Deployment = await deploy(1, 1, max_model_len=64)  # bounds an answer without max_tokens
    seen: list[tuple[str, Any]] = []

    @settings(max_examples=80, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(["completions", "chat/completions"]), BODIES, VALID, st.booleans())
    def collect(path: str, body: dict[str, Any], valid: dict[str, Any], complete: bool) -> None:
        own = {key: value for key, value in valid.items() if key != ("messages" if path == "completions" else "prompt")}
        seen.append((path, {**own, **body} if complete else body))

    collect()
    for path, body in seen:
        response = await d.http.post(f"/v1/{path}", content=json.dumps(body))
        assert response.status_code == 200 or 400 <= response.status_code < 500, (body, response.text)
        if response.status_code != 200:
            error = response.json()["error"]
            assert error["message"]
            assert error["type"] == "invalid_request_error"
    await d.idle()
