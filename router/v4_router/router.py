"""The state of one router process: model, workers, keys, policy and metrics, and the tasks that keep them current."""

import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from v4_core.errors import ConfigError
from v4_core.fingerprint import tokenizer_digest
from v4_core.reloading import Reloaded
from v4_core.token import TokenFile
from v4_core.tracing import Tracing
from v4_router.background import Background
from v4_router.chat import BOS, MARKERS, THINK_END, Mode
from v4_router.config import RouterConfig
from v4_router.endpoints import WorkerEndpoint, listed
from v4_router.exchange import Exchange
from v4_router.facts import Recent
from v4_router.fleet import Fleet
from v4_router.job import Job
from v4_router.keys import KeyRing, Keys, read_keys
from v4_router.metrics import FleetCollector, Metrics
from v4_router.output import ChoiceOutput, LogprobWriter
from v4_router.policy import Policy, read_policy
from v4_router.prober import Prober
from v4_router.timing import Timing
from v4_router.tokenizer import Tokenizer

if TYPE_CHECKING:
    from v4_router.pods import PodWatch


class Router:
    """One router. Created outside any event loop; serves while in `running`.

    Raises ConfigError if a file that the router needs cannot be used.
    """

    def __init__(self, config: RouterConfig, tracing: Tracing | None = None) -> None:
        self.config = config
        self.tracing = tracing
        self.created = int(time.time())
        self.mode = default_mode(config.model_path)
        self.tokenizer = Tokenizer(config.model_path, config.segment_cache_bytes)
        names = {self.tokenizer.special(name): name for name in MARKERS}
        self.logprobs = LogprobWriter(self.tokenizer.token_bytes, names)
        token = None if config.token_file is None else TokenFile(config.token_file)
        self.fleet = Fleet(Policy(), config.connect_timeout_seconds, token, tokenizer_digest(config.model_path))
        self._policy_file: Reloaded[Policy] | None = None
        if isinstance(config.policy, Path):
            self._policy_file = Reloaded(config.policy, read_policy, self._follow_policy)
            self.fleet.policy = self._policy_file.current
        else:
            self.fleet.policy = config.policy
        self.keys: KeyRing | None = None
        self._keys_file: Reloaded[Keys] | None = None
        if config.api_keys is not None:
            self._keys_file = Reloaded(config.api_keys, read_keys, self._follow_keys)
            self.keys = KeyRing(self._keys_file.current, lambda: self.policy.key_overlap_seconds)
        self.metrics = Metrics()
        self.recent = Recent()  # samples of the metrics
        self.update(listed(config.prefill, config.decode))
        self.requests = 0  # being served now
        self.metrics.registry.register(FleetCollector(self.fleet, lambda: self.requests))
        self.draining = False  # the process is about to end
        self._pods: PodWatch | None = None
        self._background = Background()
        self._prober = Prober(self.fleet, self.metrics, self.tokenizer.special(BOS), self._background)

    @property
    def policy(self) -> Policy:
        """The current policy."""
        return self.fleet.policy

    def update(self, endpoints: Iterable[WorkerEndpoint]) -> None:
        """Replaces the list of workers."""
        self.fleet.update(endpoints)
        self.metrics.keep_revisions({link.endpoint.revision for link in self.fleet.links.values()})

    def _follow_policy(self, policy: Policy) -> None:
        self.fleet.policy = policy

    def _follow_keys(self, keys: Keys) -> None:
        if self.keys is not None:
            self.keys.replace(keys)

    @property
    def healthy(self) -> bool:
        """Whether every background task is running."""
        return not self._background.broken

    @property
    def ready(self) -> bool:
        """Whether new requests find workers, and a probe has once passed through prefill, transfer and decode.

        The probe is required only where prefill workers are expected.
        """
        proven = self._prober.paired or not self.config.expects_prefill
        return proven and self.fleet.can_serve() and not self.draining

    def unseen(self) -> str:
        """Returns why the router cannot watch pods. Returns "" if it can, or if it does not need to."""
        return self._pods.problem() if self._pods is not None else ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Discovers and connects the workers; on exit, ends everything that runs on them. Raises ConfigError."""
        async with self._background as background:
            self.fleet.begin(background)
            background.start(self._prober.run())
            for file in (self._keys_file, self._policy_file):
                if file is not None:
                    background.start(file.follow())
            if self.config.deployment:
                from v4_router.pods import PodWatch  # noqa: PLC0415 (takes half a second)

                self._pods = await PodWatch.connect(self.config.namespace, self.config.deployment, self.update)
                background.start(self._pods.run())
            try:
                yield
            finally:
                self.tokenizer.close()

    def exchange(self, job: Job, timing: Timing) -> Exchange:
        """Returns the loop that runs a job."""
        think_end = self.tokenizer.special(THINK_END) if job.thinking else None
        outputs = [
            ChoiceOutput(i, self.tokenizer.token_bytes, job.stops, think_end) for i in range(job.n * len(job.prompts))
        ]
        return Exchange(job.prompts, outputs, self.fleet, timing)


def default_mode(model_path: Path) -> Mode:
    """Returns `default_mode` of the folder's generation_config.json, by default "thinking". Raises ConfigError."""
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
