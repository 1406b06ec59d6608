"""The engine against transformers in fp32: logits agree within 1e-4, and greedy tokens are equal above a margin."""

import json

import pytest
import torch

from tests.engine.harness import Run, make_engine, request
from tests.oracle import oracle
from tests.tiny import tiny_config, tiny_tensors
from v4_core.config import ModelConfig
from v4_core.sampling import Sampling
from v4_core.settings import load
from v4_core.shards import weight_files
from v4_engine.engine import Engine
from v4_engine.loading import load_engine
from v4_engine.options import EngineOptions
from v4_engine.weights import read
from v4_models import DEMO_MODEL

MARGIN = 1e-3


def compare(engine: Engine, model: torch.nn.Module, ids: list[int], count: int, tolerance: float) -> None:
    """Generate greedily, and compare log-probabilities and, above the margin, tokens with one full forward pass."""
    vocab = engine.config.vocab_size
    sampling = Sampling(temperature=0.0, logprobs=vocab)
    run = Run(engine).until_idle(request(ids, max_tokens=count, sampling=sampling))
    output = run.ids()
    with torch.no_grad():
        logits = model(torch.tensor([ids + output])).logits[0, len(ids) - 1 : -1]
    expected = logits.log_softmax(-1)
    worst = 0.0
    for row, token in zip(expected, run.tokens["r", 0], strict=True):
        ours = torch.empty(vocab)
        for index, value in token.drawn.top:
            ours[index] = value
        worst = max(worst, (ours - row).abs().max().item())
        top = row.topk(2)
        if (top.values[0] - top.values[1]).item() > MARGIN:
            assert token.drawn.id == top.indices[0].item()
    assert worst <= tolerance


@pytest.mark.parametrize("overrides", [{}, {"compress_ratios": [128, 128, 4, 0, 4], "num_hash_layers": 3}])
def test_random_model_over_300_tokens(overrides: dict[str, object]) -> None:
    config = tiny_config(**overrides)
    engine = make_engine(config, compute="fp32", storage="fp32")
    ids = torch.randint(2, 512, (37,), generator=torch.Generator().manual_seed(5)).tolist()
    compare(engine, oracle(overrides, tiny_tensors(config)), ids, 320, 1e-4)


def test_random_model_with_a_long_prompt() -> None:
    engine = make_engine(compute="fp32", storage="fp32", chunk_tokens=200)
    ids = torch.randint(2, 512, (900,), generator=torch.Generator().manual_seed(6)).tolist()
    compare(engine, oracle({}, tiny_tensors(tiny_config())), ids, 8, 1e-4)


def test_shipped_model() -> None:
    loaded = load_engine(
        DEMO_MODEL, load(EngineOptions, None, {"device": "cpu", "memory": 256 << 20, "max_sequences": 2})
    )
    config = ModelConfig.from_path(DEMO_MODEL)

    overrides = json.loads((DEMO_MODEL / "config.json").read_text())
    tensors = dict(read(config, weight_files(DEMO_MODEL)))
    ids = torch.randint(20, config.vocab_size, (700,), generator=torch.Generator().manual_seed(7)).tolist()
    compare(loaded.engine, oracle(overrides, tensors), ids, 40, 1e-3)
