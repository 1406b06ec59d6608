"""The index tensors of steps, followed by hand: each token reads exactly the rows of its own sequence that it must see.

Memory is a dictionary from row index to (sequence, position), so that a row names what it holds.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import tiny_config
from v4_core.config import C4, C128
from v4_core.geometry import CacheGeometry
from v4_engine.batch import Slice
from v4_engine.errors import IntegrityError
from v4_engine.input_builder import InputBuilder
from v4_engine.inputs import Group, StepInputs, Windows

CPU = torch.device("cpu")
CONFIG = tiny_config()
Row = tuple[int, int]  # sequence, position


def slots_of(sequence: int, tokens: int) -> list[int]:
    """Block slots of a sequence: each has ten of its own."""
    return [10 * sequence + block for block in range(-(-tokens // 256))]


class Cache:
    """Follows steps of sequences that start empty; token ids are the numbers of their sequences."""

    def __init__(self, slack: int = 0) -> None:
        self.geometry = CacheGeometry(CONFIG, "fp32", "fp32", slack)
        self.builder = InputBuilder(self.geometry, CPU)
        self.raw: dict[int, Row] = {}
        self.states: dict[int, dict[int, Row]] = {C4: {}, C128: {}}
        self.entries: dict[int, Row] = {}
        self.length: dict[int, int] = {}

    def step(self, counts: dict[int, int], captures: dict[int, tuple[tuple[int, int], ...]] | None = None) -> None:
        """Compute so many tokens of each sequence and check what they read."""
        slices = []
        for sequence, count in counts.items():
            start = self.length.get(sequence, 0)
            self.length[sequence] = start + count
            captured = (captures or {}).get(sequence, ())
            slots = slots_of(sequence, start + count)
            slices.append(Slice([sequence] * count, start, sequence, slots, captures=captured))
        inputs = self.builder.build(slices)
        new = list(zip(inputs.ids.tolist(), inputs.positions.tolist(), strict=True))
        assert [new[token] for token in inputs.last.tolist()] == [(s, self.length[s] - 1) for s in counts]
        self._close(inputs.c4, C4, new)
        self._close(inputs.c128, C128, new)
        self._attend(inputs, new)

    def _close(self, windows: Windows, ratio: int, new: list[Row]) -> None:
        states = self.states[ratio]
        workspace = [states[row] for row in windows.old_row.tolist()] + new
        closed = [row for row in new if (row[1] + 1) % ratio == 0]
        assert windows.position.tolist() == [position + 1 - ratio for _, position in closed]
        assert windows.phase.tolist() == [position % ratio for _, position in new]
        for (sequence, end), rows, valid in zip(closed, windows.window.tolist(), windows.valid.tolist(), strict=True):
            first = end + 1 - len(rows)
            assert valid == [position >= 0 for position in range(first, end + 1)]
            read = [(half_row // 2, half_row % 2) for half_row in rows] if ratio == C4 else [(row, 0) for row in rows]
            halves = [0] * 4 + [1] * 4 if ratio == C4 else [0] * len(rows)
            assert [half for _, half in read] == halves
            seen = [workspace[row] for (row, _), ok in zip(read, valid, strict=True) if ok]
            assert seen == [(sequence, position) for position in range(max(first, 0), end + 1)]
        for (sequence, end), target in zip(closed, windows.target.tolist(), strict=True):
            self.entries[ratio * 10**9 + target] = (sequence, end // ratio)
        kept = range(len(workspace)) if windows.write_from is None else windows.write_from.tolist()
        states.update(zip(windows.write_row.tolist(), [workspace[row] for row in kept], strict=True))

    def _attend(self, inputs: StepInputs, new: list[Row]) -> None:
        workspace = [self.raw[row] for row in inputs.raw_old_row.tolist()] + new
        answered: list[Row] = []
        for group in inputs.groups:
            query = range(len(new)) if group.query is None else group.query.tolist()
            queries = [new[token] for token in query]
            self._check_group(group, queries, workspace)
            back = range(len(queries)) if group.back is None else group.back.tolist()
            answered += [queries[index] for index in back]
        assert answered == new, "every token has its output, in token order"
        kept = [workspace[row] for row in inputs.raw_write_from.tolist()]
        self.raw.update(zip(inputs.raw_write_row.tolist(), kept, strict=True))

    def _check_group(self, group: Group, queries: list[Row], workspace: list[Row]) -> None:
        width = len(queries) // group.tiles
        for number, (sequence, position) in enumerate(queries):
            tile, member = divmod(number, width)
            rows, mask = group.window_row[tile].tolist(), group.window_mask[tile, member].tolist()
            seen = [workspace[row] for row, visible in zip(rows, mask, strict=True) if visible]
            oldest = max(0, position + 1 - CONFIG.window)
            assert seen == [(sequence, p) for p in range(oldest, position + 1)]
            if group.c128 is not None:
                rows, mask = group.c128.row[tile].tolist(), group.c128.mask[tile, member].tolist()
                read = [self.entries[C128 * 10**9 + row] for row, ok in zip(rows, mask, strict=True) if ok]
                assert read == [(sequence, entry) for entry in range((position + 1) // C128)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.integers(0, 3), st.sampled_from([1, 1, 2, 3, 31, 32, 33, 130]), min_size=1), max_size=12
    ),
    st.sampled_from([0, 5]),
)
def test_every_token_reads_its_own_sequence_however_steps_are_cut(steps: list[dict[int, int]], slack: int) -> None:
    cache = Cache(slack)
    for counts in steps:
        cache.step(counts)


def test_a_captured_state_continues_like_its_sequence() -> None:
    """The tail that captured a boundary inside a chunk holds the rows that a chunk ending there would have left."""
    cache, cut = Cache(), Cache()
    cache.step({1: 300}, {1: ((256, 7),)})
    cut.step({1: 256})
    for memory, expected, kind in ((cache.raw, cut.raw, "raw"), (cache.states[C4], cut.states[C4], "state")):
        stride = (
            cache.geometry.tail_bytes // next(r for r in cache.geometry.tail_regions if r.kind == kind).row.parts[0]
        )
        captured = {row - 7 * stride: held for row, held in memory.items() if row // stride == 7}
        own = {row - stride: held for row, held in expected.items() if row // stride == 1}
        wanted = {row: held for row, held in own.items() if held[1] >= 256 - (CONFIG.window if kind == "raw" else C4)}
        assert captured == wanted


def test_decoding_sequences_are_grouped_by_length() -> None:
    builder = Cache().builder

    def tiles(*starts: int) -> list[int]:
        slices = [Slice([1], start, i, [0] * (start // 256 + 1)) for i, start in enumerate(starts)]
        return [group.tiles for group in builder.build(slices).groups]

    assert tiles(10, 60_000, 300) == [3], "contexts below 65,536 tokens form one group"
    assert tiles(10, 70_000, 140_000, 300) == [2, 1, 1]


def test_too_few_slots_are_refused() -> None:
    with pytest.raises(IntegrityError, match="fewer block slots"):
        Cache().builder.build([Slice([1] * 300, 0, 0, [0])])
