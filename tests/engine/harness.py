"""Runs engines step by step and compares what they say about every token: the whole vocabulary's log-probabilities."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch

from tests.tiny import tiny_config, tiny_tensors
from v4_core.config import ModelConfig
from v4_core.geometry import CacheGeometry
from v4_core.sampling import Sampling
from v4_engine.engine import Admitted, Engine, Event, Parked, Token
from v4_engine.params import build
from v4_engine.scheduler import Limits
from v4_engine.sequence import Key, Leg, Request
from v4_engine.stores import CacheMemory

CPU = torch.device("cpu")
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
GREEDY = Sampling(temperature=0.0)
ALL_LOGPROBS = Sampling(temperature=0.0, logprobs=512)


def make_engine(
    config: ModelConfig | None = None,
    compute: str = "fp64",
    storage: str = "fp64",
    slots: int = 64,
    slack: int = 0,
    seed: int = 0,
    **limits: int,
) -> Engine:
    """A poisoned engine over the tiny random model."""
    config = config or tiny_config()
    params = build(config, tiny_tensors(config, seed).items(), DTYPES[compute], CPU)
    bounds = Limits(**({"max_sequences": 6, "max_model_len": 8192, "chunk_tokens": 512} | limits))
    geometry = CacheGeometry(config, storage, storage, slack)
    memory = CacheMemory(geometry, slots, bounds.max_sequences + bounds.scratch_tails, CPU)
    return Engine(config, params, memory, bounds, poison=True)


def prompt(n: int, seed: int = 1) -> list[int]:
    """n token ids; equal seeds share their beginning."""
    return torch.randint(2, 512, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def request(
    ids: Sequence[int],
    name: str = "r",
    leg: Leg = "whole",
    max_tokens: int = 4,
    n: int = 1,
    sampling: Sampling = ALL_LOGPROBS,
) -> Request:
    """A request without stop tokens."""
    return Request((name, 0), leg, ids, n=n, max_tokens=max_tokens, sampling=sampling)


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
        rows = torch.empty(len(self.tokens[name, choice]), 512, dtype=torch.float64)
        for row, token in zip(rows, self.tokens[name, choice], strict=True):
            for index, value in token.drawn.top:
                row[index] = value
        return rows


def alone(ids: Sequence[int], max_tokens: int = 4) -> Run:
    """A fresh fp64 engine that runs one prompt in one shot."""
    return Run(make_engine(chunk_tokens=16_384)).until_idle(request(ids, max_tokens=max_tokens))


def assert_same(left: torch.Tensor, right: torch.Tensor, tolerance: float = 1e-9) -> None:
    """Log-probabilities agree everywhere and hold no NaN."""
    assert left.shape == right.shape
    assert (left - right).abs().max().item() <= tolerance  # NaN compares false
