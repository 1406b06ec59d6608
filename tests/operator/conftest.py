"""A small API server for tests of the operator's I/O."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.operator.fake_server import FakeServer, serving
from v4_operator.kube.api import Api


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[FakeServer, Api]]:
    """The server, and a client of it."""
    async with serving(tmp_path) as pair:
        yield pair


@pytest.fixture
def server(served: tuple[FakeServer, Api]) -> FakeServer:
    return served[0]


@pytest.fixture
def api(served: tuple[FakeServer, Api]) -> Api:
    return served[1]


async def until(true: Callable[[], object]) -> None:
    """Return once `true()` is; fails after 10 s."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
