"""Runs engines step by step and compares the log-probabilities of the whole vocabulary at every token.

Weights, and the results of a prompt that has a fresh engine to itself, are computed once per process.
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
from v4_engine.options import SchedulerConfig
from v4_engine.params import Params, build
from v4_engine.sequence import Key, Phase, Request
from v4_engine.stores import CacheMemory

CPU = torch.device("cpu")
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
GREEDY = Sampling(temperature=0.0)
ALL_LOGPROBS = Sampling(temperature=0.0, logprobs=512)


@cache
def weights(config: ModelConfig, compute: str, seed: int) -> Params:
    """Return the tiny random model's weights, which all engines share.

    They are inference tensors, so torch refuses to change them outside inference mode.
    """
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
    """Return a poisoned engine with the tiny random model."""
    config = config or tiny_config()
    params = weights(config, compute, seed)
    scheduler_config = SchedulerConfig(
        **({"max_sequences": 6, "max_model_len": 8192, "chunk_tokens": 512} | scheduling)
    )
    geometry = CacheGeometry(config, storage, storage, slack)
    memory = CacheMemory(geometry, slots, scheduler_config.max_sequences + scheduler_config.scratch_tails, CPU)
    return Engine(config, params, memory, scheduler_config, poison=True)


def damage(engine: Engine) -> None:
    """Make this engine's model, and no other, give NaN for every prompt."""
    params = engine._model._params
    engine._model._params = replace(params, norm=torch.full_like(params.norm, math.nan))


def prompt(n: int, seed: int = 1) -> list[int]:
    """Return n token ids. With equal seeds, the shorter prompt is a prefix of the longer one."""
    return torch.randint(2, 512, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def request(
    ids: Sequence[int],
    name: str = "r",
    phase: Phase = "whole",
    max_tokens: int = 4,
    n: int = 1,
    sampling: Sampling = ALL_LOGPROBS,
) -> Request:
    """Return a request without stop tokens."""
    return Request((name, 0), phase, ids, n=n, max_tokens=max_tokens, sampling=sampling)


class Run:
    """Collects all events of one engine by request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.cached: dict[Key, int] = {}
        self.tokens: dict[tuple[str, int], list[Token]] = defaultdict(list)
        self.parked: dict[Key, Parked] = {}
        self.computed = 0  # tokens computed in all steps

    def take(self, events: Iterable[Event]) -> None:
        """Collect events."""
        for event in events:
            key = event.request.key
            if isinstance(event, Admitted):
                self.cached[key] = event.cached
            elif isinstance(event, Token):
                self.tokens[key[0], event.choice].append(event)
            elif isinstance(event, Parked):
                self.parked[key] = event

    def step(self) -> None:
        """Run one step and check the engine's bookkeeping after it."""
        self.take(self.engine.step())
        self.engine.scheduler.check_integrity()

    def until_idle(self, *requests: Request) -> "Run":
        """Submit requests and run steps until no sequence runs or waits."""
        for r in requests:
            self.engine.submit(r)
        for _ in range(20_000):
            if not self.engine.busy:
                return self
            self.step()
        raise AssertionError("the engine is still busy after 20,000 steps")

    def ids(self, name: str = "r", choice: int = 0) -> list[int]:
        """Return the output tokens of a choice."""
        return [t.drawn.id for t in self.tokens[name, choice]]

    def logprobs(self, name: str = "r", choice: int = 0) -> torch.Tensor:
        """Return the log-probabilities [output, vocab] of a choice by token id."""
        rows = [sorted(token.drawn.top) for token in self.tokens[name, choice]]
        assert all([index for index, _ in row] == list(range(512)) for row in rows)
        return torch.tensor([[value for _, value in row] for row in rows], dtype=torch.float64)


@dataclass(frozen=True)
class Answer:
    """Output tokens, and their log-probabilities [output, vocab] by token id."""

    ids: list[int]
    logprobs: torch.Tensor


def alone(ids: Sequence[int], max_tokens: int = 4) -> Answer:
    """Return the answer of a fresh fp64 engine that computes the whole prompt in one step."""
    return _alone(tuple(ids), max_tokens)


@cache
def _alone(ids: tuple[int, ...], max_tokens: int) -> Answer:
    run = Run(make_engine(chunk_tokens=16_384)).until_idle(request(ids, max_tokens=max_tokens))
    return Answer(run.ids(), run.logprobs())


def assert_same(left: torch.Tensor, right: torch.Tensor, tolerance: float = 1e-9) -> None:
    """Assert that log-probabilities agree everywhere and contain no NaN."""
    assert left.shape == right.shape
    assert (left - right).abs().max().item() <= tolerance  # NaN compares false
