"""Decode and prefill of the engine, compared with transformers: same weights, threads and allocator, in one process.

    python -m bench.engine [--json] [--quick]

The model has 8 layers and 13 M parameters (fp32, random). Both sides run with raised trim and mmap thresholds of
glibc's allocator, without which transformers is even slower. Figures are medians. Contexts come from a real prefill.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

ALLOCATOR = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
THREADS = 2
MODEL: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "head_dim": 96,
    "qk_rope_head_dim": 32,
    "q_lora_rank": 128,
    "n_routed_experts": 8,
    "compress_ratios": [0, 4, 128, 4, 128, 4, 128, 4],
    "sliding_window": 128,
    "o_groups": 2,
    "o_lora_rank": 128,
    "index_n_heads": 16,
    "index_head_dim": 32,
    "index_topk": 128,
    "max_position_embeddings": 32768,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 2048,
    },
}


class Ours:
    """The engine with the benchmark's model."""

    name = "v4serve"

    def __init__(self) -> None:
        from tests.tiny import tiny_config, tiny_tensors

        from v4_core.geometry import CacheGeometry
        from v4_engine.engine import Engine
        from v4_engine.options import SchedulerConfig
        from v4_engine.params import build
        from v4_engine.stores import CacheMemory

        self.config = tiny_config(**MODEL)
        self.tensors = tiny_tensors(self.config)
        params = build(self.config, self.tensors.items(), torch.float32, torch.device("cpu"))
        scheduling = SchedulerConfig(max_sequences=8, max_model_len=20_000, chunk_tokens=520)
        memory = CacheMemory(CacheGeometry(self.config, "fp32", "fp32"), 8 * 68 + 80, 10, torch.device("cpu"))
        self._engine = Engine(self.config, params, memory, scheduling)
        self._salt = 0

    def prefill(self, context: int, batch: int) -> float:
        """Return the seconds to prefill `batch` different prompts. The sequences stay, ready to decode."""
        from v4_core.sampling import Sampling
        from v4_engine.sequence import Request

        for sequence in list(self._engine.scheduler.running):
            self._engine.drop(sequence.request.key)
        self._salt += 1
        began = time.perf_counter()
        for i in range(batch):
            ids = prompt(context, 1000 * self._salt + i)
            greedy = Sampling(temperature=0)
            self._engine.submit(Request((f"{i}", 0), "whole", ids, max_tokens=4096, sampling=greedy))
        while any(s.remaining > 1 for s in (*self._engine.scheduler.running, *self._engine.scheduler.waiting)):
            self._engine.step()
        return time.perf_counter() - began

    def decode(self) -> float:
        """Return the seconds of one step of the sequences that are ready to decode."""
        began = time.perf_counter()
        self._engine.step()
        return time.perf_counter() - began


class Theirs:
    """transformers' own model with the same weights, eager attention and its fastest prefill chunk."""

    name = "transformers"
    chunk = 256

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        from tests.oracle import oracle

        self._model = oracle(MODEL, tensors)
        self._cache: Any = None
        self._next = torch.zeros(0)

    @torch.inference_mode()
    def prefill(self, context: int, batch: int) -> float:
        """Return the seconds to prefill one batch of prompts of equal length."""
        from transformers import DynamicCache

        ids = torch.tensor([prompt(context, i) for i in range(batch)])
        self._cache = DynamicCache(config=self._model.config)
        began = time.perf_counter()
        for start in range(0, context, self.chunk):
            part = ids[:, start : start + self.chunk]
            out = self._model(part, cache=self._cache, use_cache=True, logits_to_keep=1)
        seconds = time.perf_counter() - began
        self._next = out.logits[:, -1].argmax(-1, keepdim=True)
        return seconds

    @torch.inference_mode()
    def decode(self) -> float:
        """Return the seconds to decode one token for every sequence of the batch."""
        began = time.perf_counter()
        out = self._model(self._next, cache=self._cache, use_cache=True)
        self._next = out.logits[:, -1].argmax(-1, keepdim=True)
        return time.perf_counter() - began


def prompt(n: int, seed: int) -> list[int]:
    """Return random token ids."""
    return torch.randint(2, MODEL["vocab_size"], (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def median(run: Callable[[], float], times: int) -> float:
    """Return the median seconds of several runs."""
    return statistics.median(run() for _ in range(times))


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return one row per figure: its name, our value and transformers' value."""
    ours = Ours()
    theirs = Theirs(ours.tensors)
    print(f"{sum(t.numel() for t in ours.tensors.values()) / 1e6:.1f} M parameters", file=sys.stderr)
    rows = []
    cases = [(1024, 1), (4096, 1), (4096, 8)] if quick else [(n, b) for b in (1, 8) for n in (1024, 4096, 16384)]
    for context, batch in cases:
        figures = {}
        for side in (ours, theirs):
            side.prefill(context, batch)
            median(side.decode, 3)
            figures[side.name] = 1000 * median(side.decode, 21)
        rows.append({"figure": f"decode ms/step, context {context}, batch {batch}", **figures})
        print(rows[-1], file=sys.stderr)
    for context in (1024, 8192):
        figures = {}
        for side in (ours, theirs):
            side.prefill(512, 1)
            figures[side.name] = context / median(partial(side.prefill, context, 1), 3)
        rows.append({"figure": f"prefill tokens/s, {context} tokens", **figures})
        print(rows[-1], file=sys.stderr)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if not ALLOCATOR.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, "-m", "bench.engine", *sys.argv[1:]], {**os.environ, **ALLOCATOR})
    torch.set_num_threads(THREADS)
    rows = measure(args.quick)
    if args.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['figure']:<42} v4serve {row['v4serve']:>9.2f}   transformers {row['transformers']:>9.2f}")


if __name__ == "__main__":
    main()
