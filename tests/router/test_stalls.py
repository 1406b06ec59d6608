"""Tokenizing a long prompt does not stall running streams."""

import asyncio
import time

from tests.router.conftest import Deploy

WORDS = "the cat sat on the mat and a dog ran to see . "


async def test_100k_token_prompts_do_not_stop_a_stream(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    d.decode[0].step_seconds = 0.005
    gaps: list[float] = []
    quiet = asyncio.Event()
    done = asyncio.Event()

    async def stream() -> None:
        async with d.http.stream(
            "POST", "/v1/completions", json={"prompt": [10], "max_tokens": 100_000, "stream": True}
        ) as response:
            last = time.perf_counter()
            async for _ in response.aiter_raw():
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
                if len(gaps) == 100:
                    quiet.set()
                if done.is_set():
                    return

    reading = asyncio.create_task(stream())
    await quiet.wait()
    normal = max(gaps[10:])
    before = len(gaps)
    for number in range(3):
        text = f"{number} " + WORDS * 9000
        response = await d.chat([{"role": "user", "content": text}], max_tokens=1)
        assert response.status_code == 200
        assert response.json()["usage"]["prompt_tokens"] > 100_000
    done.set()
    await reading
    worst = max(gaps[before:])
    # Tokenizing 100k tokens takes hundreds of ms. Client, router and workers share this event loop and its GIL: 60 ms
    # are taken by the JSON, protobuf copies and ids in all three.
    assert worst < max(10 * normal, 0.15), f"worst gap {worst:.3f} s, normally at most {normal:.3f} s"
    await d.idle()
