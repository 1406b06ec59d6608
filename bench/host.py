"""What the host does beside the model: naming blocks, tokenizing, getting rid of cancelled work.

    python -m bench.host [--json]

Each figure stands beside its yardstick of the same run: naming beside hashing the same bytes in one go, tokenizing
beside the tokenizer's own call, the delay behind cancelled prompts beside an idle engine and one chunk.
"""

import argparse
import asyncio
import hashlib
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer as HfTokenizer

from v4_core.blocks import block_names, pack_ids
from v4_models import DEMO_MODEL
from v4_router.tokenizer import Tokenizer

TOKENS = 100_000


def median(run: Callable[[], object], times: int) -> float:
    """Median seconds."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def naming() -> dict[str, Any]:
    """Milliseconds to name the blocks of 100k tokens."""
    packed = pack_ids(range(TOKENS))
    ours = median(lambda: block_names(packed, b"tenant"), 50)
    hashing = median(lambda: hashlib.blake2b(packed, digest_size=16).digest(), 50)
    return {"figure": "naming 100k tokens, ms", "v4serve": 1e3 * ours, "yardstick": 1e3 * hashing, "of": "one blake2b"}


def tokenizing() -> list[dict[str, Any]]:
    """Million tokens per second of about 100k tokens of text, cold and with half of it seen before."""
    plain = HfTokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    words = "It was a fine morning, and they walked together to the village without saying much. "
    text = words * (TOKENS // len(plain.encode(words).ids))
    count = len(plain.encode(text).ids)
    theirs = count / median(lambda: plain.encode(text), 5)

    def ours(seen: int) -> float:
        parts = [part for part in (text[:seen], text[seen:]) if part]

        async def run() -> float:
            tokenizer = Tokenizer(DEMO_MODEL, 256 << 20)
            if seen:
                await tokenizer.encode_segments(parts[:1])
            began = time.perf_counter()
            await tokenizer.encode_segments(parts)
            return time.perf_counter() - began

        return count / statistics.median(asyncio.run(run()) for _ in range(5))

    rows = []
    for name, seen in (("cold", 0), ("90 % seen before", len(text) * 9 // 10)):
        figure = f"tokenizing {count} tokens {name}, M tokens/s"
        rows.append({"figure": figure, "v4serve": ours(seen) / 1e6, "yardstick": theirs / 1e6, "of": "encode"})
    return rows


def cancelling() -> dict[str, Any]:
    """Milliseconds to the first token of a short prompt behind ten long ones that were just cancelled."""
    from bench.engine import Ours, prompt
    from v4_core.sampling import Sampling
    from v4_engine.events import Token
    from v4_engine.sequence import Request

    torch.set_num_threads(2)
    engine = Ours()._engine

    def short(name: str) -> float:
        began = time.perf_counter()
        greedy = Sampling(temperature=0)
        engine.submit(Request((name, 0), "whole", prompt(32, len(name)), max_tokens=1, sampling=greedy))
        while not any(isinstance(e, Token) and e.request.key[0] == name for e in engine.step()):
            pass
        return time.perf_counter() - began

    short("compiled by now")
    idle: list[float] = []
    delayed: list[float] = []
    chunk: list[float] = []
    for turn in range(5):
        idle.append(short(f"idle{turn}"))
        for i in range(10):
            engine.submit(Request((f"long{i}", turn), "whole", prompt(16_000, 100 * turn + i), max_tokens=1))
        engine.step()
        arrived = time.perf_counter()
        engine.step()  # while it runs, the short one arrives and the long ones are cancelled
        chunk.append(time.perf_counter() - arrived)
        for i in range(10):
            engine.drop((f"long{i}", turn))
        short(f"short{turn}")
        delayed.append(time.perf_counter() - arrived)
    yardstick = statistics.median(idle) + statistics.median(chunk)
    return {
        "figure": "TTFT behind 10 cancelled 16k prompts, ms",
        "v4serve": 1e3 * statistics.median(delayed),
        "yardstick": 1e3 * yardstick,
        "of": "idle TTFT + one chunk",
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [naming(), *tokenizing(), cancelling()]
    if args.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['figure']:<52} v4serve {row['v4serve']:>8.3f}   {row['of']} {row['yardstick']:>8.3f}")


if __name__ == "__main__":
    main()
