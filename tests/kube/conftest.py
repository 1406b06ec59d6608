"""A small API server, and a client of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.kube.fake_server import FakeServer, serving
from v4_kube.client import KubeClient


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[FakeServer, KubeClient]]:
    """The server, and a client of it."""
    async with serving(tmp_path) as pair:
        yield pair


@pytest.fixture
def server(served: tuple[FakeServer, KubeClient]) -> FakeServer:
    return served[0]


@pytest.fixture
def api(served: tuple[FakeServer, KubeClient]) -> KubeClient:
    return served[1]


async def until(true: Callable[[], object]) -> None:
    """Returns once `true()` is true; fails after 10 s."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)
