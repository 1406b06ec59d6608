"""Two models that answer differently, and the one right answer of each to some prompts.

Computed by one engine without a server, as `v4serve generate` does. Prompts are chosen so that at no token the second
likeliest comes near: pods sum in another order, and a difference in the last digits must not choose another token.
"""

import asyncio
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from v4_core.blocks import unpack_ids
from v4_core.sampling import Sampling
from v4_core.settings import load
from v4_engine.engine import Engine
from v4_engine.events import Token
from v4_engine.generate import generate
from v4_engine.loading import load_engine
from v4_engine.options import EngineOptions
from v4_engine.sequence import Request
from v4_router.tokenizer import Tokenizer

DEMO = Path(__file__).parents[2] / "models" / "v4_models" / "demo"

_OPENINGS = (
    "Once upon a time there was a little girl",
    "The dog ran to the park and",
    "Tom and Lily went to the beach",
    "One day, a big cat found a red ball",
    "There was a small boat on the sea",
    "Mother said that it was time for bed",
    "A bird sat on a tree and sang",
    "The king had a crown of gold",
    "In the garden stood an old wall, and",
    "The two brothers walked through the snow",
    "When the sun rose over the hills",
    "An old man lived by the river",
)
_FEWEST = 4
_LEAST_LEAD = 0.002  # between the logarithms of the two highest probabilities; sums differ by about 1e-5
_NOISE = 0.05  # of the other model's weights, relative


Answers = Mapping[str, tuple[int, ...]]
"""What each of some prompts is continued with by one model, greedily, whatever end it would choose itself."""


def other_model(folder: Path) -> Path:
    """A copy of the shipped model in `folder` whose experts were shaken, readable for all."""
    folder.mkdir()
    for file in DEMO.iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(DEMO / "model.safetensors")
    noise = torch.Generator().manual_seed(1)
    for name, tensor in weights.items():
        if ".experts." in name:
            tensor.mul_(1 + _NOISE * torch.randn(tensor.shape, generator=noise))
    save_file(weights, folder / "model.safetensors")
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    return folder


@cache
def answers(model: Path, tokens: int) -> Answers:
    """Answers of so many tokens to prompts that have a clear one."""
    engine = load_engine(model, load(EngineOptions, None, {"device": "cpu", "max_sequences": len(_OPENINGS)})).engine
    found = dict(_clear(engine, _encoded(model), tokens))
    assert len(found) >= _FEWEST, f"only {len(found)} of {len(_OPENINGS)} prompts have a clear answer"
    return found


def _encoded(model: Path) -> dict[str, list[int]]:
    tokenizer = Tokenizer(model, cache_bytes=0)
    try:
        return {text: list(unpack_ids(asyncio.run(tokenizer.encode_raw(text)))) for text in _OPENINGS}
    finally:
        tokenizer.close()


def _clear(engine: Engine, prompts: Mapping[str, list[int]], count: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    greedy = Sampling(temperature=0.0, logprobs=2)
    requests = [Request((text, 0), "whole", ids, max_tokens=count, sampling=greedy) for text, ids in prompts.items()]
    drawn: dict[str, list[Token]] = {text: [] for text in prompts}
    for token in generate(engine, requests):
        drawn[token.request.key[0]].append(token)
    for text, tokens in drawn.items():
        if min(map(_lead, tokens)) >= _LEAST_LEAD:
            yield text, tuple(token.drawn.id for token in tokens)


def _lead(token: Token) -> float:
    (_, first), (_, second) = token.drawn.top
    return first - second
