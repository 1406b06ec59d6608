"""What one router process holds: model, workers, metrics, and whether a token ever went through them."""

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from v4_core.errors import ConfigError
from v4_core.sampling import Sampling
from v4_router.chat import BOS, MARKERS, THINK_END, Mode
from v4_router.config import RouterConfig
from v4_router.errors import RouterError
from v4_router.exchange import Exchange
from v4_router.fleet import Fleet
from v4_router.generation import Generation
from v4_router.job import Job
from v4_router.metrics import Metrics, WorkerCollector
from v4_router.output import ChoiceOutput, LogprobWriter
from v4_router.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_PROBE_PAUSE_SECONDS = 0.05
_PROBE_TIMEOUT_SECONDS = 60.0  # the first step on a worker may compile


class Router:
    """Built outside any event loop; serves within `running`. Raises ConfigError if the model's folder is unusable."""

    def __init__(self, config: RouterConfig) -> None:
        self.config = config
        self.created = int(time.time())
        self.mode = default_mode(config.model_path)
        self.tokenizer = Tokenizer(config.model_path, config.segment_cache_bytes)
        names = {self.tokenizer.special(name): name for name in MARKERS}
        self.logprobs = LogprobWriter(self.tokenizer.token_bytes, names)
        self.fleet = Fleet(config)
        self.metrics = Metrics()
        self.metrics.registry.register(WorkerCollector(self.fleet.links.values()))
        self._probed = False

    @property
    def ready(self) -> bool:
        """A token went through a pair, and there is a worker now."""
        return self._probed and self.fleet.can_serve()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Connects to the workers, and ends everything on them when left."""
        async with self.fleet.running():
            probe = asyncio.create_task(self._probe())
            try:
                yield
            finally:
                probe.cancel()
                await asyncio.gather(probe, return_exceptions=True)
                self.tokenizer.close()

    def exchange(self, job: Job) -> Exchange:
        """The loop that runs a job."""
        return self._exchange(job.prompts, job.stops, self.tokenizer.special(THINK_END) if job.thinking else None)

    def _exchange(self, prompts: Sequence[Generation], stops: tuple[str, ...], think_end: int | None) -> Exchange:
        outputs = [
            ChoiceOutput(i, self.tokenizer.token_bytes, stops, think_end) for i in range(prompts[0].n * len(prompts))
        ]
        return Exchange(prompts, outputs, self.fleet, self.metrics)

    async def _probe(self) -> None:
        """Sends a token through prefill and decode until one came out."""
        while not self._probed:
            if self.fleet.can_serve():
                try:
                    self._probed = await self._send_probe()
                except RouterError as error:
                    log.info("not ready yet: %s", error)
            await asyncio.sleep(_PROBE_PAUSE_SECONDS)
        log.info("ready: a token went through %s", "decode" if not self.fleet.prefill else "prefill and decode")

    async def _send_probe(self) -> bool:
        loop = asyncio.get_running_loop()
        prompt = Generation(
            id=f"probe-{random.getrandbits(64):016x}",
            prompt=self.tokenizer.special(BOS).to_bytes(4, "little"),
            n=1,
            max_tokens=2,  # the first comes from prefill, the second from decode
            sampling=Sampling(temperature=0.0),
            deadline=loop.time() + _PROBE_TIMEOUT_SECONDS,
            ignore_eos=True,
        )
        exchange = self._exchange([prompt], (), None)
        try:
            async for _ in exchange.deltas():
                pass
        finally:
            exchange.close()
        return exchange.flows[0].adopted is not None or not self.fleet.prefill


def default_mode(model_path: Path) -> Mode:
    """`default_mode` of the folder's generation_config.json; thinking if it names none. Raises ConfigError."""
    file = model_path / "generation_config.json"
    if not file.exists():
        return "thinking"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    modes: dict[object, Mode] = {"chat": "chat", "thinking": "thinking"}
    mode = data.get("default_mode", "thinking") if isinstance(data, dict) else None
    if isinstance(mode, str) and mode in modes:
        return modes[mode]
    raise ConfigError(f"{file} has default_mode {mode!r}: choose chat or thinking")
