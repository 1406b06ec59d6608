"""Work of the host outside the model: naming blocks, tokenizing, dropping cancelled requests.

    python -m bench.host [--json]

Each figure is compared with a yardstick from the same run: naming with hashing the same bytes at once, tokenizing with
the tokenizer library's own call, and the delay after cancelled prompts with an idle engine plus one chunk.
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
    """Return the median seconds of several runs."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def naming() -> dict[str, Any]:
    """Measure the milliseconds to name the blocks of 100k tokens."""
    packed = pack_ids(range(TOKENS))
    ours = median(lambda: block_names(packed, b"tenant"), 50)
    hashing = median(lambda: hashlib.blake2b(packed, digest_size=16).digest(), 50)
    return {"figure": "naming 100k tokens, ms", "v4serve": 1e3 * ours, "yardstick": 1e3 * hashing, "of": "one blake2b"}


def tokenizing() -> list[dict[str, Any]]:
    """Measure million tokens per second for about 100k tokens of text, cold and with 90 % of it seen before."""
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
    """Measure the milliseconds to the first token of a short prompt after ten long prompts were cancelled."""
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

    short("warm-up")
    idle: list[float] = []
    delayed: list[float] = []
    chunk: list[float] = []
    for turn in range(5):
        idle.append(short(f"idle{turn}"))
        for i in range(10):
            engine.submit(Request((f"long{i}", turn), "whole", prompt(16_000, 100 * turn + i), max_tokens=1))
        engine.step()
        arrived = time.perf_counter()
        engine.step()  # during this step, the short prompt arrives and the long ones are cancelled
        chunk.append(time.perf_counter() - arrived)
        for i in range(10):
            engine.drop((f"long{i}", turn))
        short(f"short{turn}")
        delayed.append(time.perf_counter() - arrived)
    yardstick = statistics.median(idle) + statistics.median(chunk)
    return {
        "figure": "TTFT after 10 cancelled 16k prompts, ms",
        "v4serve": 1e3 * statistics.median(delayed),
        "yardstick": 1e3 * yardstick,
        "of": "idle TTFT + one chunk",
    }


def main() -> None:
    """Measure and print."""
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
