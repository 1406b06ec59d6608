"""A router on a real port with fake workers on real ports."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp

from tests.router.fake_worker import MAX_MODEL_LEN, Caches, FakeWorker
from tests.router.tokenizers import write_model
from v4_router import prober
from v4_router.app import build_app
from v4_router.config import RouterConfig
from v4_router.endpoints import WorkerEndpoint
from v4_router.http_protocol import BoundedHttp
from v4_router.router import Router
from v4_router.workers import WorkerLink

MODEL = "tiny"


async def until(condition: Callable[[], bool], what: str = "", seconds: float = 10.0) -> None:
    """Polls until the condition holds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.002)


@dataclass
class Deployment:
    """A router with its workers."""

    router: Router
    url: str
    prefill: list[FakeWorker]
    decode: list[FakeWorker]
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    workers: list[FakeWorker] = field(init=False)

    def __post_init__(self) -> None:
        self.workers = self.prefill + self.decode

    async def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        """Posts to /v1/completions."""
        headers = fields.pop("headers", None)
        return await self.http.post("/v1/completions", json={"prompt": prompt, **fields}, headers=headers)

    async def chat(self, messages: Any, **fields: Any) -> httpx.Response:
        """Posts to /v1/chat/completions."""
        headers = fields.pop("headers", None)
        return await self.http.post("/v1/chat/completions", json={"messages": messages, **fields}, headers=headers)

    async def wait_up(self) -> None:
        """Waits until the router uses every worker that it knows, each in its present process."""
        instances = {worker.address: worker.instance for worker in self.workers}

        def usable(link: WorkerLink) -> bool:
            return link.usable and link.info.instance == instances.get(link.address, link.info.instance)

        await until(lambda: all(map(usable, self.router.fleet.links.values())), "workers usable")

    def discover(self, *endpoints: WorkerEndpoint) -> None:
        """Sets the workers that discovery reports."""
        self.router.update(endpoints)

    async def idle(self) -> None:
        """Waits until no worker holds anything."""
        await until(lambda: all(worker.idle for worker in self.workers), "workers idle")

    async def metric(self, name: str, **labels: str) -> float:
        """Returns the sum of the metric's samples with these labels."""
        text = (await self.http.get("/metrics")).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


Deploy = Callable[..., Any]


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder whose chats are in chat mode."""
    return write_model(tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def serving(router: Router) -> AsyncIterator[str]:
    """Yields the URL of a running router's API on a free port."""
    async with router.running(), listening(build_app(router)) as url:
        yield url


class _Server(uvicorn.Server):
    """A uvicorn server that stops at once when asked to; uvicorn itself polls ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    async def main_loop(self) -> None:
        """Waits until it is asked to stop."""
        await self.on_tick(0)
        await self.ended.wait()


@asynccontextmanager
async def listening(app: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    """Serves an app on the given port, or on a free one, and yields its URL."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)  # so that a slow client blocks it
        config = uvicorn.Config(
            app, http=BoundedHttp, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1
        )
        server = _Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started or task.done(), "server started")
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.ended.set()
            await task


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the router ping silent workers after 0.2 s."""
    monkeypatch.setattr("v4_router.workers._SILENCE_SECONDS", 0.2)


@pytest.fixture
async def deploy(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Deploy]:
    """Returns a function that starts a deployment; with `ready=False` it does not wait for the workers."""
    monkeypatch.setattr(prober, "_LOOK_SECONDS", 0.002)  # each start waits for two rounds of the prober
    async with AsyncExitStack() as stack:

        async def start(
            prefill: int = 1,
            decode: int = 1,
            *,
            ready: bool = True,
            max_model_len: int = MAX_MODEL_LEN,
            **settings: Any,
        ) -> Deployment:
            caches = Caches()
            workers = {
                role: [await FakeWorker(role, caches, max_model_len).start() for _ in range(number)]
                for role, number in (("prefill", prefill), ("decode", decode))
            }
            for worker in (*workers["prefill"], *workers["decode"]):
                stack.push_async_callback(worker.kill)
            config = RouterConfig(
                **{
                    "model_path": model_path,
                    "served_name": MODEL,
                    "prefill": tuple(w.address for w in workers["prefill"]),
                    "decode": tuple(w.address for w in workers["decode"]),
                    **settings,
                }
            )
            router = Router(config)
            url = await stack.enter_async_context(serving(router))
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30, trust_env=False))
            client = openai.AsyncOpenAI(
                base_url=f"{url}/v1",
                api_key="none",
                max_retries=0,
                http_client=openai.DefaultAsyncHttpxClient(timeout=30, trust_env=False),
            )
            stack.push_async_callback(client.close)
            deployment = Deployment(router, url, workers["prefill"], workers["decode"], http, client)
            if ready:
                await until(lambda: router.ready, "ready")
                await deployment.wait_up()
                await deployment.idle()
                for worker in deployment.workers:
                    worker.starts.clear()
                    worker.cancels.clear()
            return deployment

        yield start
