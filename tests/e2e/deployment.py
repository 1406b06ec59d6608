"""A complete local deployment of a tiny random model, in fp64 so that rounding cannot change a token."""

import json
from pathlib import Path
from typing import Any

import httpx

from tests.forked.processes import ForkedDeployment
from tests.router.tokenizers import write_model
from tests.tiny import tiny_checkpoint
from v4_cli.local import LocalDeployment
from v4_cli.topology import LocalConfig
from v4_core.sampling import Sampling
from v4_core.settings import load
from v4_engine.engine import Engine
from v4_engine.generate import output_ids
from v4_engine.loading import load_engine
from v4_engine.options import ComputeOptions, EngineOptions
from v4_engine.sequence import Request


def model_folder(folder: Path) -> Path:
    """Write a checkpoint with a tokenizer and return its folder."""
    return write_model(tiny_checkpoint(folder / "tiny"))


def local(model: Path, prefill: int = 1, decode: int = 1, **worker: Any) -> LocalDeployment:
    """Return a deployment of forked processes whose workers compute in fp64."""
    settings = {"memory": "64MB", "threads": 1, "max_sequences": 40} | worker
    return ForkedDeployment(LocalConfig(model, prefill, decode, 0, ComputeOptions("cpu", "fp64", "fp64"), settings))


def reference_engine(model: Path) -> Engine:
    """Return an offline engine with the same model."""
    options = load(EngineOptions, None, {"device": "cpu", "dtype": "fp64", "memory": 64 << 20, "max_sequences": 8})
    return load_engine(model, options).engine


def reference(engine: Engine, ids: list[int], max_tokens: int, sampling: Sampling, n: int = 1) -> list[list[int]]:
    """Return the offline output of every choice, which stops at end of sequence."""
    stop = frozenset(engine.config.eos_token_ids)
    request = Request(("offline", 0), "whole", ids, n=n, max_tokens=max_tokens, sampling=sampling, stop_ids=stop)
    return [list(output) for output in output_ids(engine, request)]


async def held(url: str) -> dict[str, float]:
    """Return the sums of blocks, tails, leases and requests that all workers hold which are up."""
    async with httpx.AsyncClient() as client:
        workers = (await client.get(f"{url}/fleet")).json()["workers"]
    loads = [worker["load"] for worker in workers if worker["up"]]
    names = ("blocks_used", "tails_used", "leases", "running", "waiting")
    return {name: sum(load[name] for load in loads) for name in names if loads}


def dumps(value: object) -> str:
    """Format a value for messages of assertions."""
    return json.dumps(value, sort_keys=True)
