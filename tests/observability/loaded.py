"""A local deployment of the shipped model under load, seen by a real Prometheus: what dashboards are tested with.

Everything that dashboards show happens once: streams with shared prefixes, more than the small caches hold, clients
that leave and ask wrongly, a prefill worker that dies, a decode worker that drains. Beside it a recorded operator rolls
out. The deployment is gone when the load is over; Prometheus, and what it saw, stays.
"""

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from openai import AsyncOpenAI, NotFoundError

from tests.forked.processes import ForkedDeployment, fork
from tests.observability.prometheus import Prometheus, PrometheusTools, Target
from tests.observability.promtest import FILES
from tests.observability.recorded_operator import NAMESPACE, recorded_operator
from v4_cli.local import LocalDeployment, own_command
from v4_cli.processes import stop
from v4_cli.topology import LocalConfig, Process, served_name
from v4_core.held_ports import held_for

_CLIENTS = 12
_MIXED, _REDUCED = 60, 90  # answers of mixed load until a prefill worker dies, and until clients begin to grow
_WORKER = {"slots": 40, "max_sequences": 8, "threads": 1, "drain_seconds": 1}  # little, so that caches overflow
_OPERATOR = {"namespace": "v4serve", "pod": "operator-0", "role": "operator"}
_FAMILIES = 6  # of prompts with a common beginning
_SHARED_TOKENS, _REST_TOKENS, _OUTPUT_TOKENS = 600, (20, 120, 300), (16, 60, 120)
# A replay begins 6 layers of 128 tokens before the end of what two prompts share, in whole blocks of 256 tokens.
_LONG_SHARED_TOKENS, _LONG_REST_TOKENS = 1400, 600
# Five slots at first: a block, one to grow into and three for a checkpoint. So eight of them fill a worker, and
# none finds room for its third block: one is preempted, and waits until their clients leave.
_GROWING_TOKENS, _GROWTH_TOKENS = 250, 4000
_QUEUED = re.compile(r"^v4serve_queued_tokens [1-9]", re.MULTILINE)
_MIGRATED = re.compile(r"^v4serve_migrations_total [1-9]", re.MULTILINE)
_PREEMPTED = 'v4serve_sequences{pod="decode-1", state="waiting"} > 0'
_EVENT_SECONDS = 120.0


@dataclass(frozen=True)
class Loaded:
    """What was seen, and when, in Unix times."""

    prometheus: Prometheus
    start: float
    outage: float  # until here all workers ran, under load
    peak: float  # until here clients asked for as much as they ever do
    end: float


@contextmanager
def loaded(tools: PrometheusTools, folder: Path) -> Iterator[Loaded]:
    """Load a deployment, then yield the Prometheus that saw it. Takes about a minute."""
    with ExitStack() as stack:
        operator = Target(stack.enter_context(recorded_operator()), _OPERATOR)

        def watch(ports: Mapping[str, int]) -> Prometheus:
            targets = [*(_target(name, port) for name, port in ports.items()), operator]
            return stack.enter_context(Prometheus(tools, folder, targets, rules=FILES))

        yield asyncio.run(_deploy_and_load(watch))


def _target(name: str, port: int) -> Target:
    role = name.partition("-")[0]
    labels = {"namespace": NAMESPACE, "deployment": "demo", "pod": name, "role": role}
    # One worker as if of another revision: workers do not know theirs, scraping says it.
    revision = {} if role == "router" else {"revision": "former" if name == "decode-1" else "wanted"}
    return Target(f"127.0.0.1:{port}", labels | revision)


async def _deploy_and_load(watch: Callable[[Mapping[str, int]], Prometheus]) -> Loaded:
    """`watch` starts a Prometheus, given the monitoring port of each process."""
    commands: dict[str, Sequence[str]] = {}
    ports: dict[str, int] = {}

    def command(process: Process, settings: Path) -> Sequence[str]:
        commands[process.name] = own_command(process, settings)
        ports[process.name] = _number(process.settings["monitoring_port"])
        return commands[process.name]

    config = LocalConfig(port=0, prefill=2, decode=2, worker=_WORKER)
    async with ForkedDeployment(config, log=lambda *_: None, command=command) as deployment:
        prometheus = await asyncio.to_thread(watch, ports)
        await asyncio.to_thread(prometheus.wait_until_scraped)
        start = time.time()
        async with AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            outage, peak = await _Load(client, deployment, ports, prometheus).run()
        address = deployment.addresses["prefill-1"]
        held = held_for([_number(address.rpartition(":")[2]), ports["prefill-1"]])  # by the deployment still
        # A worker that comes back: the first probes may have been before Prometheus looked.
        back = fork("prefill-1", commands["prefill-1"][3:], {**os.environ, **held}, lambda _: None)
        try:
            probed = "increase(v4serve_probe_seconds_count[1m]) > 0"
            await asyncio.to_thread(prometheus.wait_for, probed, seconds=_EVENT_SECONDS)
        finally:
            await stop([back], grace_seconds=10.0)
        last = time.time()
        await asyncio.to_thread(prometheus.wait_for, f"timestamp(v4serve_requests_running) > {last + 1}")
        return Loaded(prometheus, start, outage, peak, time.time())


def _number(port: object) -> int:
    return int(str(port))


class _Load:
    """Clients that send one request after the other, and what befalls the workers meanwhile."""

    def __init__(
        self, client: AsyncOpenAI, deployment: LocalDeployment, ports: Mapping[str, int], prometheus: Prometheus
    ) -> None:
        self._client, self._deployment, self._ports, self._prometheus = client, deployment, ports, prometheus
        self._model = served_name(deployment.config.model)
        self._numbers = iter(range(10**9))
        self._answers = 0
        self._over = False

    async def run(self) -> tuple[float, float]:
        """All of it; the Unix times at which the first worker died and the first clients left."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_CLIENTS):
                group.create_task(self._send_mixed())
            await _until(lambda: self._answers >= _MIXED, f"{_MIXED} answers came")
            for number in range(_CLIENTS):
                group.create_task(self._ask_at_length(random.Random(-1 - number)))
            await self._until_says("prefill-1", _QUEUED)
            outage = time.time()
            await self._deployment.kill("prefill", 1)
            await _until(lambda: self._answers >= _REDUCED, f"{_REDUCED} answers came")
            growing = [
                group.create_task(self._stream(_ids(random.Random(number), _GROWING_TOKENS), _GROWTH_TOKENS))
                for number in range(4 * _WORKER["max_sequences"])  # more than both decode workers hold at once
            ]
            await asyncio.to_thread(self._prometheus.wait_for, _PREEMPTED, seconds=_EVENT_SECONDS)
            await self._deployment.kill("decode", 1, signal.SIGTERM)  # it hands its streams back
            await self._until_says("router", _MIGRATED)
            peak, self._over = time.time(), True
            for stream in growing:
                stream.cancel()
        return outage, peak

    async def _send_mixed(self) -> None:
        while not self._over:
            number = next(self._numbers)
            rng = random.Random(number)
            if number % 20 == 19:
                await self._ask_wrongly()
            else:
                ids = _ids(random.Random(number % _FAMILIES), _SHARED_TOKENS) + _ids(rng, rng.choice(_REST_TOKENS))
                await self._stream(ids, rng.choice(_OUTPUT_TOKENS), leaves=number % 7 == 6)
                self._answers += 1

    async def _stream(self, ids: list[int], max_tokens: int, leaves: bool = False) -> None:
        more = {"ignore_eos": True}
        stream = await self._client.completions.create(
            model=self._model, prompt=ids, max_tokens=max_tokens, temperature=0.5, stream=True, extra_body=more
        )
        async for _ in stream:
            if leaves:
                await stream.close()
                return

    async def _ask_at_length(self, rng: random.Random) -> None:
        """A prompt that leaves a common beginning far behind the last state that is kept of it."""
        ids = _ids(random.Random(0), _LONG_SHARED_TOKENS) + _ids(rng, _LONG_REST_TOKENS)
        await self._client.completions.create(model=self._model, prompt=ids, max_tokens=1)

    async def _until_says(self, name: str, said: re.Pattern[str]) -> None:
        """Until a process's metrics say something."""
        end = time.monotonic() + _EVENT_SECONDS
        async with httpx.AsyncClient() as client:
            while not said.search((await client.get(f"http://127.0.0.1:{self._ports[name]}/metrics")).text):
                assert time.monotonic() < end, f"{name} never says {said.pattern}"
                await asyncio.sleep(0.01)

    async def _ask_wrongly(self) -> None:
        with suppress(NotFoundError):
            await self._client.completions.create(model="another", prompt="Hello")


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, 2048) for _ in range(count)]


async def _until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _EVENT_SECONDS
    while not holds():
        assert time.monotonic() < end, f"never came to pass: {what}"
        await asyncio.sleep(0.01)
