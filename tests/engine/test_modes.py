"""The tokens after a prompt are the same however the prompt's state was computed."""

import numpy as np
import pytest

from tests.engine.harness import ALL_LOGPROBS, Run, alone, assert_same, make_engine, prompt, request
from tests.tiny import tiny_config
from v4_engine.engine import Engine
from v4_engine.sequence import Request

LENGTHS = [*range(1, 10), *(128 * i + d for i in (1, 2, 4, 6, 8) for d in (-1, 0, 1)), 777]


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 127, 128, 129, 255, 256, 257])
def test_chunked_equals_one_shot(chunk: int) -> None:
    ids = prompt(600)
    chunked = Run(make_engine(chunk_tokens=chunk, max_sequences=1)).until_idle(request(ids))
    assert_same(chunked.logprobs(), alone(ids).logprobs)


@pytest.mark.parametrize("n", LENGTHS)
def test_batched_equals_alone_and_a_hit_equals_cold(n: int) -> None:
    engine = make_engine(chunk_tokens=300)
    others = [request(prompt(m, seed=m), f"o{m}") for m in (2, 130, 700)]
    run = Run(engine).until_idle(*others, request(prompt(n)))
    cold = alone(prompt(n))
    assert_same(run.logprobs(), cold.logprobs)
    again = Run(engine).until_idle(request(prompt(n)))
    assert again.cached["r", 0] == 256 * ((n - 1) // 256)
    assert_same(again.logprobs(), cold.logprobs)


@pytest.mark.parametrize("shared", [255, 256, 257, 511, 512, 700])
def test_a_shared_prefix_is_used_and_its_end_gets_a_checkpoint(shared: int) -> None:
    engine = make_engine()
    Run(engine).until_idle(request(prompt(900), "first"))
    other = prompt(900)[:shared] + prompt(300, seed=9)
    for attempt in range(2):
        run = Run(engine).until_idle(request(other))
        assert_same(run.logprobs(), alone(other).logprobs)
        if attempt == 0:
            continue
        assert run.cached["r", 0] == 256 * ((len(other) - 1) // 256)
    third = prompt(900)[:shared] + prompt(40, seed=10)
    run = Run(engine).until_idle(request(third))
    assert run.cached["r", 0] == 256 * (shared // 256), "the junction carries a checkpoint"
    assert_same(run.logprobs(), alone(third).logprobs)


def evict_checkpoints(engine: Engine) -> None:
    """Evict every checkpoint, but no block."""
    tree = engine.pool.tree
    for node in tree.nodes.values():
        if node.checkpoint is not None:
            engine.pool.release(tree._drop_checkpoint(node))


@pytest.mark.parametrize("n", [300, 600, 1100])
def test_replay_is_exact_and_writes_no_entry(n: int) -> None:
    engine = make_engine()
    Run(engine).until_idle(request(prompt(n)))
    evict_checkpoints(engine)
    before = {name: node.slot for name, node in engine.pool.tree.nodes.items()}
    arena = engine.memory.arena.clone()
    run = Run(engine).until_idle(request(prompt(n)))
    hit = 256 * ((n - 1) // 256)
    assert run.cached["r", 0] == max(0, hit - 5 * 15), "a replay of layers * (window - 1) tokens"
    assert_same(run.logprobs(), alone(prompt(n)).logprobs)
    size = engine.geometry.slab_bytes
    for name, slot in before.items():
        assert engine.pool.tree.nodes[name].slot == slot
        for offset, length in engine.geometry.block_spans:
            at = slot * size + offset
            assert (engine.memory.arena[at : at + length] == arena[at : at + length]).all()


def test_blocks_evicted_under_pressure_are_computed_again() -> None:
    engine = make_engine(slots=24, max_model_len=2048)
    cold = alone(prompt(1000)).logprobs
    Run(engine).until_idle(request(prompt(1000)))
    for seed in range(2, 8):
        Run(engine).until_idle(request(prompt(1500, seed=seed), "o"))
    run = Run(engine).until_idle(request(prompt(1000)))
    assert run.cached["r", 0] < 768, "some of it was evicted"
    assert_same(run.logprobs(), cold)


def test_preemption_recomputes_the_same_tokens() -> None:
    prompts = [prompt(500 + 10 * i, seed=20 + i) for i in range(2)]
    engine = make_engine(slots=9, max_model_len=1536)
    run = Run(engine).until_idle(*(request(p, f"p{i}", max_tokens=400) for i, p in enumerate(prompts)))
    assert engine.counts.preemptions > 0
    for i, ids in enumerate(prompts):
        cold = alone(ids, max_tokens=400)
        assert run.ids(f"p{i}") == cold.ids
        assert_same(run.logprobs(f"p{i}"), cold.logprobs)


def hand_over(source: Run, target: Run, name: str = "r") -> None:
    """Move a parked cache from one engine to another, byte by byte like a transfer."""
    parked = source.parked[name, 0]
    r = parked.request
    decode = request(r.prompt, name, "decode", r.max_tokens, r.n, r.sampling)
    sequence = target.engine.reserve(decode)
    assert sequence is not None
    assert sequence.tail is not None
    here, there = source.engine.geometry, target.engine.geometry
    out_slabs, out_tails = source.engine.memory.host_view()
    in_slabs, in_tails = target.engine.memory.host_view()

    def gather(row: np.ndarray, spans: tuple[tuple[int, int], ...]) -> bytes:
        return b"".join(row[o : o + length].tobytes() for o, length in spans)

    def scatter(row: np.ndarray, spans: tuple[tuple[int, int], ...], data: bytes) -> None:
        for o, length in spans:
            row[o : o + length] = np.frombuffer(data[:length], dtype=np.uint8)
            data = data[length:]
        assert not data

    complete, rest = divmod(len(r.prompt), 256)
    slots = list(sequence.slots)
    for block in range(sequence.named, complete):
        scatter(in_slabs[slots[block]], there.block_spans, gather(out_slabs[parked.slots[block]], here.block_spans))
        target.engine.block_arrived(decode.key, block)
    if rest:
        data = gather(out_slabs[parked.slots[complete]], here.open_block_spans(rest))
        scatter(in_slabs[slots[complete]], there.open_block_spans(rest), data)
    n = len(r.prompt)
    scatter(in_tails[sequence.tail], there.tail_spans(n), gather(out_tails[parked.tail], here.tail_spans(n)))
    for first in parked.firsts:
        target.tokens[name, first.choice].append(first)
    target.engine.adopt(decode.key, {f.choice: (f.drawn.id, f.finish) for f in parked.firsts})
    source.engine.drop(r.key)


@pytest.mark.parametrize("n", [*range(1, 10), 100, 127, 128, 129, 255, 256, 257, 600])
@pytest.mark.parametrize("slacks", [(0, 0), (5, 5), (0, 5), (5, 0)])
def test_disaggregated_equals_aggregated(n: int, slacks: tuple[int, int]) -> None:
    source, target = (Run(make_engine(slack=slack)) for slack in slacks)
    source.until_idle(request(prompt(n), phase="prefill", max_tokens=300 if n == 600 else 6))
    hand_over(source, target)
    target.until_idle()
    assert_same(target.logprobs(), alone(prompt(n), max_tokens=300 if n == 600 else 6).logprobs)
    assert source.engine.pool.tree.referenced == target.engine.pool.tree.referenced == 0


@pytest.mark.parametrize("n", [5, 256, 300])
def test_forks_continue_as_if_alone(n: int) -> None:
    beside = request(prompt(40), "beside", max_tokens=60)  # holds the first tail
    run = Run(make_engine()).until_idle(beside, request(prompt(n), n=3))
    cold = alone(prompt(n)).logprobs
    for choice in range(3):
        assert_same(run.logprobs(choice=choice), cold)
    source, target = Run(make_engine()), Run(make_engine())
    source.until_idle(request(prompt(n), phase="prefill", n=3))
    hand_over(source, target)
    target.until_idle()
    for choice in range(3):
        assert_same(target.logprobs(choice=choice), cold)


def test_a_decode_worker_takes_only_the_blocks_it_lacks() -> None:
    source, target = Run(make_engine()), Run(make_engine())
    target.until_idle(request(prompt(700), "earlier"))
    source.until_idle(request(prompt(700), phase="prefill"))
    hand_over(source, target)
    target.until_idle()
    assert_same(target.logprobs(), alone(prompt(700)).logprobs)


def test_identical_prompts_at_once_cost_one_prefill() -> None:
    engine = make_engine(max_sequences=8, chunk_tokens=256, slots=160)
    run = Run(engine).until_idle(*(request(prompt(4096), f"p{i}", max_tokens=1) for i in range(8)))
    cached = sorted(run.cached.values())
    assert cached == [0] + [3840] * 7
    assert len({tuple(run.ids(f"p{i}")) for i in range(8)}) == 1


@pytest.mark.parametrize("ratios", [[0, 0, 4], [128, 4, 128], [4, 4, 0]])
def test_other_layer_patterns_and_a_full_window(ratios: list[int]) -> None:
    config = tiny_config(compress_ratios=ratios, num_hidden_layers=3, sliding_window=128)
    ids = prompt(700)
    cold = Run(make_engine(config, chunk_tokens=4096)).until_idle(request(ids))
    engine = make_engine(config, chunk_tokens=100)
    Run(engine).until_idle(request(ids))
    evict_checkpoints(engine)
    assert_same(Run(engine).until_idle(request(ids)).logprobs(), cold.logprobs())


def test_eight_thousand_tokens() -> None:
    ids = prompt(8000)
    cold = alone(ids)
    engine = make_engine(chunk_tokens=1000)
    assert_same(Run(engine).until_idle(request(ids)).logprobs(), cold.logprobs)
    assert_same(Run(engine).until_idle(request(ids)).logprobs(), cold.logprobs)


@pytest.mark.parametrize(
    ("compute", "storage", "tolerance"),
    [("fp32", "fp32", 1e-4), ("fp32", "bf16", 0.05), ("bf16", "bf16", 0.4), ("bf16", "fp32", 0.4)],
)
def test_other_formats_agree_within_their_rounding(compute: str, storage: str, tolerance: float) -> None:
    ids = prompt(600)
    shot = Run(make_engine(compute=compute, storage=storage, chunk_tokens=4096)).until_idle(request(ids, max_tokens=1))
    engine = make_engine(compute=compute, storage=storage, chunk_tokens=100)
    for _ in range(2):
        run = Run(engine).until_idle(request(ids, max_tokens=1))
        assert_same(run.logprobs(), shot.logprobs(), tolerance)


def test_a_boundary_inside_a_replay_gets_no_checkpoint() -> None:
    """Inside a replay the tail is not exact. A window of 128 makes a replay of several blocks."""
    config = tiny_config(compress_ratios=[0, 4, 128], num_hidden_layers=3, sliding_window=128)
    engine = make_engine(config, checkpoint_every=1, chunk_tokens=256)
    Run(engine).until_idle(request(prompt(2100)))
    evict_checkpoints(engine)
    run = Run(engine).until_idle(request(prompt(2100)))
    assert run.cached["r", 0] == 2048 - 3 * 127
    assert all(node.checkpoint is None for node in list(engine.pool.tree.nodes.values())[:-1])
    shorter = prompt(2100)[:1900] + prompt(9, seed=4)
    cold = Run(make_engine(config, chunk_tokens=4096)).until_idle(request(shorter))
    for _ in range(2):
        assert_same(Run(engine).until_idle(request(shorter)).logprobs(), cold.logprobs())


def test_no_rolling_checkpoint_inside_a_replay() -> None:
    """A continuation is past its prompt while it replays; here a chunk ends at a boundary inside the replay."""
    config = tiny_config(compress_ratios=[0, 4, 128], num_hidden_layers=3, sliding_window=128)
    replay = 3 * 127
    engine = make_engine(config, chunk_tokens=1024 - (1280 - replay))
    ids = prompt(1500)
    Run(engine).until_idle(request(ids))
    evict_checkpoints(engine)
    continued = Request(("r", 0), "whole", ids[:600], output=ids[600:], max_tokens=2000, sampling=ALL_LOGPROBS)
    engine.submit(continued)
    run = Run(engine)
    ends = set()
    while not run.tokens["r", 0]:
        run.step()
        ends.add(engine.scheduler.running[0].computed)
    assert 1024 in ends
    engine.drop(("r", 0))
    shorter = ids[:1100]
    again = Run(engine).until_idle(request(shorter))
    assert again.cached["r", 0] == 1024 - replay
    cold = Run(make_engine(config, chunk_tokens=4096)).until_idle(request(shorter))
    assert_same(again.logprobs(), cold.logprobs())
