"""The counts of an engine, compared with a model that looks at every token, and with the work that was really done."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.harness import GREEDY, Run, damage, make_engine, prompt, request
from tests.engine.test_scheduler import CHECKPOINT, ask, drain
from v4_core.blocks import BLOCK_TOKENS, block_names, pack_ids
from v4_engine.options import SchedulerConfig
from v4_engine.pool import SlotPool
from v4_engine.scheduler import Scheduler
from v4_engine.sequence import Request

REPLAY = 400  # more than one block
SLOTS = 14


def small() -> Scheduler:
    """Return a scheduler with few slots, of a model that replays REPLAY tokens."""
    config = SchedulerConfig(max_sequences=4, max_model_len=1500, chunk_tokens=300)
    return Scheduler(SlotPool(SLOTS), config, CHECKPOINT, layers=4, window=1 + REPLAY // 4)


def prefill(scheduler: Scheduler, new: Request) -> None:
    """Compute a prompt and free its memory."""
    scheduler.check_fits(new)
    scheduler.add(new)
    drain(scheduler)
    scheduler.drop(new.key)


class Model:
    """Knows which blocks are in the tree, which have checkpoints, and which were evicted last."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._tree = scheduler.pool.tree
        self._evicted: list[bytes] = []
        evict = self._tree.evict

        def watched():  # type: ignore[no-untyped-def]
            evicted = evict()
            if evicted is not None and evicted.what == "block":
                self._evicted = [*(name for name in self._evicted if name != evicted.name), evicted.name][-SLOTS:]
            return evicted

        self._tree.evict = watched  # type: ignore[method-assign]

    def results(self, ids: list[int]) -> Counter[str]:
        """Return how many tokens of a prompt that arrives now have each result."""
        names = block_names(pack_ids(ids[:-1]), b"")  # the last token is always computed
        here = [name for name in names if name in self._tree.nodes]
        assert here == names[: len(here)]
        end = BLOCK_TOKENS * len(here)
        saved = [BLOCK_TOKENS * (i + 1) for i, name in enumerate(here) if self._tree.nodes[name].checkpoint]
        restored, replayed = max(saved, default=0), max(0, end - REPLAY)
        results: Counter[str] = Counter()
        for position in range(len(ids)):
            block = position // BLOCK_TOKENS
            if position < max(restored, replayed):
                results["hit"] += 1
            elif position < end:
                results["replayed" if replayed > restored else "no_checkpoint"] += 1
            elif block < len(names) and names[block] in self._evicted:
                results["evicted"] += 1
            else:
                results["no_blocks"] += 1
        return results


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1400), st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=12))
def test_each_token_of_a_prompt_is_counted_by_its_result(asked: list[tuple[int, int, int]]) -> None:
    scheduler = small()
    model = Model(scheduler)
    for number, (tokens, family, output) in enumerate(asked):
        new = ask(f"r{number}", tokens, "prefill", family=family, output=output)
        expected = model.results([*new.prompt, *new.output])
        before = Counter(scheduler.pool.counts.prefix_tokens)
        prefill(scheduler, new)
        after = Counter(scheduler.pool.counts.prefix_tokens)
        after.subtract(before)
        assert +after == expected
        assert after.total() == new.tokens


def test_a_prompt_of_each_result() -> None:
    scheduler = small()

    def results(tokens: int, family: int, output: int = 0) -> dict[str, int]:
        before = Counter(scheduler.pool.counts.prefix_tokens)
        prefill(scheduler, ask("r", tokens, "prefill", family=family, output=output))
        after = Counter(scheduler.pool.counts.prefix_tokens)
        after.subtract(before)
        return {result: tokens for result, tokens in after.items() if tokens}

    assert results(1300, 1) == {"no_blocks": 1300}
    assert results(1300, 1) == {"hit": 1280, "no_blocks": 20}  # resumes at the checkpoint at the end of its blocks
    assert results(1000, 1) == {"hit": 768 - REPLAY, "replayed": REPLAY, "no_blocks": 1000 - 768}
    assert results(300, 1) == {"no_checkpoint": 256, "no_blocks": 44}  # a replay would begin before position 0
    assert results(1400, 2) == {"no_blocks": 1400}
    assert results(1400, 3) == {"no_blocks": 1400}
    assert results(1300, 1) == {"evicted": 1280, "no_blocks": 20}


def test_the_output_of_a_continuation_is_counted_with_its_prompt() -> None:
    scheduler = small()
    prefill(scheduler, ask("r", 500, "prefill", output=90))
    assert scheduler.pool.counts.prefix_tokens["no_blocks"] == 590


def test_a_preempted_sequence_is_counted_once_and_computed_again() -> None:
    engine = make_engine(slots=9, max_model_len=1536)
    prompts = [prompt(500 + 10 * i, seed=20 + i) for i in range(2)]
    run = Run(engine).until_idle(*(request(p, f"p{i}", max_tokens=400, sampling=GREEDY) for i, p in enumerate(prompts)))
    counts = engine.counts
    assert counts.preemptions > 0
    assert sum(counts.prefix_tokens.values()) == 500 + 510
    assert counts.prefill_tokens > 500 + 510
    assert counts.drawn_tokens == 2 * 400 == sum(len(tokens) for tokens in run.tokens.values())
    assert sum(counts.evictions[what, "decode"] for what in ("block", "checkpoint")) > 0


def test_schedules_count_the_tokens_that_they_compute() -> None:
    engine = make_engine(chunk_tokens=256)
    engine.submit(request(prompt(300), "first", max_tokens=3, n=2, sampling=GREEDY))
    steps: list[tuple[int, int, int]] = []
    while engine.busy:
        if len(steps) == 2:
            engine.submit(request(prompt(40, seed=5), "second", "prefill", sampling=GREEDY))
        schedule, admitted = engine.schedule()
        steps.append((len(admitted), schedule.prefill_tokens, schedule.decode_tokens))
        engine.compute(schedule)
    assert steps == [(1, 256, 0), (0, 44, 0), (1, 40, 2), (0, 0, 2)]
    assert engine.counts.prefill_tokens == 340
    assert engine.counts.drawn_tokens == 2 * 3 + 1


def test_the_last_token_of_a_prompt_is_prefill_even_if_it_is_computed_alone() -> None:
    engine = make_engine()
    for _ in range(2):
        Run(engine).until_idle(request(prompt(513), max_tokens=1, sampling=GREEDY))
    assert engine.counts.prefill_tokens == 513 + 1


def test_no_token_is_counted_when_the_model_gives_nan() -> None:
    engine = make_engine()
    damage(engine)
    Run(engine).until_idle(request(prompt(20)))
    assert engine.counts.drawn_tokens == 0
