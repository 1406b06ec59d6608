"""Runs engines step by step and compares what they say about every token: the whole vocabulary's log-probabilities.

What never changes is made once a process: weights, and what an engine says of a prompt that it has for itself.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from tests.tiny import tiny_config, tiny_tensors
from v4_core.config import ModelConfig
from v4_core.geometry import CacheGeometry
from v4_core.sampling import Sampling
from v4_engine.engine import Engine
from v4_engine.events import Admitted, Event, Parked, Token
from v4_engine.params import Params, build
from v4_engine.scheduler import SchedulerConfig
from v4_engine.sequence import Key, Phase, Request
from v4_engine.stores import CacheMemory

CPU = torch.device("cpu")
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
GREEDY = Sampling(temperature=0.0)
ALL_LOGPROBS = Sampling(temperature=0.0, logprobs=512)


@cache
def weights(config: ModelConfig, compute: str, seed: int) -> Params:
    """The tiny random model's, shared by all engines: torch lets nobody write into them but in inference mode."""
    with torch.inference_mode():
        return build(config, tiny_tensors(config, seed).items(), DTYPES[compute], CPU)


def make_engine(
    config: ModelConfig | None = None,
    compute: str = "fp64",
    storage: str = "fp64",
    slots: int = 64,
    slack: int = 0,
    seed: int = 0,
    **scheduling: int,
) -> Engine:
    """A poisoned engine over the tiny random model."""
    config = config or tiny_config()
    params = weights(config, compute, seed)
    scheduler_config = SchedulerConfig(
        **({"max_sequences": 6, "max_model_len": 8192, "chunk_tokens": 512} | scheduling)
    )
    geometry = CacheGeometry(config, storage, storage, slack)
    memory = CacheMemory(geometry, slots, scheduler_config.max_sequences + scheduler_config.scratch_tails, CPU)
    return Engine(config, params, memory, scheduler_config, poison=True)


def damage(engine: Engine) -> None:
    """Make the head of this engine's model, and of no other's, give NaN for every prompt."""
    params = engine._model._params
    engine._model._params = replace(params, norm=torch.full_like(params.norm, math.nan))


def prompt(n: int, seed: int = 1) -> list[int]:
    """n token ids; equal seeds share their beginning."""
    return torch.randint(2, 512, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def request(
    ids: Sequence[int],
    name: str = "r",
    phase: Phase = "whole",
    max_tokens: int = 4,
    n: int = 1,
    sampling: Sampling = ALL_LOGPROBS,
) -> Request:
    """A request without stop tokens."""
    return Request((name, 0), phase, ids, n=n, max_tokens=max_tokens, sampling=sampling)


class Run:
    """All events of one engine, sorted by request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.cached: dict[Key, int] = {}
        self.tokens: dict[tuple[str, int], list[Token]] = defaultdict(list)
        self.parked: dict[Key, Parked] = {}
        self.computed = 0  # tokens run in all steps

    def take(self, events: Iterable[Event]) -> None:
        """Sort events in."""
        for event in events:
            key = event.request.key
            if isinstance(event, Admitted):
                self.cached[key] = event.cached
            elif isinstance(event, Token):
                self.tokens[key[0], event.choice].append(event)
            elif isinstance(event, Parked):
                self.parked[key] = event

    def step(self) -> None:
        """One engine step, its books checked behind it."""
        self.take(self.engine.step())
        self.engine.scheduler.check_integrity()

    def until_idle(self, *requests: Request) -> "Run":
        """Submit and run until nothing runs or waits."""
        for r in requests:
            self.engine.submit(r)
        for _ in range(20_000):
            if not self.engine.busy:
                return self
            self.step()
        raise AssertionError("the engine does not come to rest")

    def ids(self, name: str = "r", choice: int = 0) -> list[int]:
        """Output tokens of a choice."""
        return [t.drawn.id for t in self.tokens[name, choice]]

    def logprobs(self, name: str = "r", choice: int = 0) -> torch.Tensor:
        """[output, vocab] log-probabilities by token id."""
        rows = [sorted(token.drawn.top) for token in self.tokens[name, choice]]
        assert all([index for index, _ in row] == list(range(512)) for row in rows)
        return torch.tensor([[value for _, value in row] for row in rows], dtype=torch.float64)


@dataclass(frozen=True)
class Answer:
    """Output tokens, and [output, vocab] log-probabilities by token id."""

    ids: list[int]
    logprobs: torch.Tensor


def alone(ids: Sequence[int], max_tokens: int = 4) -> Answer:
    """What a fresh fp64 engine says that runs one prompt in one shot."""
    return _alone(tuple(ids), max_tokens)


@cache
def _alone(ids: tuple[int, ...], max_tokens: int) -> Answer:
    run = Run(make_engine(chunk_tokens=16_384)).until_idle(request(ids, max_tokens=max_tokens))
    return Answer(run.ids(), run.logprobs())


def assert_same(left: torch.Tensor, right: torch.Tensor, tolerance: float = 1e-9) -> None:
    """Log-probabilities agree everywhere and hold no NaN."""
    assert left.shape == right.shape
    assert (left - right).abs().max().item() <= tolerance  # NaN compares false
