"""Broken tracing: requests are served as they are without tracing."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.router.conftest import Deploy
from v4_core.tracing import NO_CONTEXT, Context
from v4_router import spans

PROMPT = [10, 20, 30]


class Broken:
    """A tracing with a span, of which one method raises."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.context: Context = NO_CONTEXT
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.where:
            raise RuntimeError("no spans today")

    def start(self, *_: Any, **__: Any) -> "Broken":
        self._call("start")
        return self

    def set(self, *_: Any) -> None:
        self._call("set")

    def end(self, *_: Any) -> None:
        self._call("end")


@pytest.fixture
def fresh() -> Iterator[None]:
    """Forgets which errors were logged, before and after each test."""
    spans._log_once.cache_clear()
    yield
    spans._log_once.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("where", ["start", "set", "end"])
async def test_a_failing_span_does_not_fail_its_request(
    deploy: Deploy, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    d = await deploy()
    d.router.tracing = broken = Broken(where)
    caplog.set_level(logging.INFO)
    for _ in range(3):
        assert (await d.complete(PROMPT, max_tokens=3)).status_code == 200
    assert (await d.complete(PROMPT, bogus=1)).status_code == 400
    assert where in broken.calls
    assert await d.metric("v4serve_requests_total", outcome="ok") == 3
    assert await d.metric("v4serve_requests_total", outcome="400") == 1
    assert d.router.requests == 0
    told = [record.name for record in caplog.records]
    assert told.count("v4serve.request") == 4
    assert told.count("v4_router.spans") == 1, "said once"
    assert "no spans today" in caplog.text
