"""How much of a prompt is cached. test_scheduler.py checks it for every length of a prompt."""

import pytest

from tests.engine.harness import GREEDY, Run, make_engine, prompt, request
from tests.tiny import tiny_config


@pytest.mark.parametrize("output", [1, 255, 256, 300])
def test_a_conversation_goes_on_from_its_rolling_checkpoint(output: int) -> None:
    engine = make_engine(compute="fp32", storage="fp32")
    ids = prompt(300)
    turn = Run(engine).until_idle(request(ids, max_tokens=output, sampling=GREEDY))
    longer = ids + turn.ids() + prompt(40, seed=3)
    again = Run(engine).until_idle(request(longer, max_tokens=1, sampling=GREEDY))
    computed = len(ids) + output - 1  # the last token was sampled, but not computed
    assert again.cached["r", 0] == 256 * (computed // 256)


def test_tenants_do_not_share() -> None:
    engine = make_engine(compute="fp32", storage="fp32")
    for salt in (b"one", b"two"):
        r = request(prompt(600), max_tokens=1, sampling=GREEDY)
        run = Run(engine).until_idle(type(r)(**{**vars(r), "salt": salt}))
        assert run.cached["r", 0] == 0


def test_checkpoints_every_so_many_blocks_if_set() -> None:
    """With a window of 128 and 5 layers, a prompt without a checkpoint needs a replay of 635 tokens."""
    config = tiny_config(sliding_window=128)
    for every, cached in ((0, 1280 - 635), (2, 1024)):
        engine = make_engine(config, "fp32", "fp32", checkpoint_every=every, chunk_tokens=4096, scratch_tails=1)
        Run(engine).until_idle(request(prompt(2000), max_tokens=1, sampling=GREEDY))
        shorter = prompt(2000)[:1300] + prompt(30, seed=8)
        run = Run(engine).until_idle(request(shorter, max_tokens=1, sampling=GREEDY))
        assert run.cached["r", 0] == cached
