"""Sizes against the published arithmetic, to the byte; layout against properties that hold for every model."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.tiny_config import CONFIG
from v4_core.blocks import BLOCK_TOKENS
from v4_core.config import C4, C128, SWA, ModelConfig
from v4_core.errors import GeometryError
from v4_core.geometry import (
    ALIGN,
    RAW_PAGE,
    CacheGeometry,
    Region,
    Span,
    ideal_bytes,
    total,
    v32_bytes,
)
from v4_core.profiles import model_config

K128, K256, M1 = 131_072, 262_144, 1_048_576

IDEAL = {
    ("flash", "bf16", "bf16"): {K128: 907_411_456, K256: 1_809_186_816, M1: 7_219_838_976},
    ("flash", "fp8", "fp8"): {K128: 507_874_304, K256: 1_012_534_272, M1: 4_040_494_080},
    ("flash", "fp8", "fp4"): {K128: 463_834_112, K256: 924_453_888, M1: 3_688_172_544},
    ("pro", "bf16", "bf16"): {K128: 1_298_792_448, K256: 2_589_589_504, M1: 10_334_371_840},
    ("pro", "fp8", "fp8"): {K128: 726_955_008, K256: 1_449_350_144, M1: 5_783_720_960},
    ("pro", "fp8", "fp4"): {K128: 664_040_448, K256: 1_323_521_024, M1: 5_280_404_480},
}


@pytest.mark.parametrize("model", ["flash", "pro"])
@pytest.mark.parametrize(("storage", "index"), [("bf16", "bf16"), ("fp8", "fp8"), ("fp8", "fp4")])
@pytest.mark.parametrize("tokens", [K128, K256, M1])
def test_ideal_bytes_to_the_byte(model: str, storage: str, index: str, tokens: int) -> None:
    by_type = ideal_bytes(model_config(model), storage, index, tokens)
    assert sum(by_type.values()) == IDEAL[model, storage, index][tokens]


def test_ideal_bytes_by_layer_type() -> None:
    assert ideal_bytes(model_config("pro"), "bf16", "bf16", M1) == {
        "swa": 0,
        "c4": 30 * 335_675_392,
        "c128": 31 * 8_519_680,
    }
    assert ideal_bytes(model_config("flash"), "bf16", "bf16", M1)["swa"] == 2 * 131_072


def test_a_prompt_shorter_than_the_window_has_no_more_rows_than_tokens() -> None:
    assert ideal_bytes(model_config("flash"), "bf16", "bf16", 3) == {
        "swa": 2 * 3 * 1024,
        "c4": 21 * 3 * 1024,
        "c128": 20 * 3 * 1024,
    }


def test_ratio_to_v32() -> None:
    assert v32_bytes(model_config("pro"), M1) == M1 * 1408 * 61
    assert round(v32_bytes(model_config("pro"), M1) / 10_334_371_840, 2) == 8.71


@pytest.mark.parametrize(
    ("model", "formats", "slab", "ideal", "checkpoint"),
    [
        ("flash", ("bf16", "bf16"), 1_761_280, 1_761_280, (5.785, 4)),
        ("flash", ("fp8", "fp8"), 988_416, 985_664, (3.476, 4)),
        ("flash", ("fp8", "fp4"), 902_016, 899_648, (3.476, 5)),
        ("pro", ("bf16", "bf16"), 2_521_088, 2_521_088, (8.211, 4)),
        ("pro", ("fp8", "fp8"), 1_414_656, 1_410_928, (4.935, 4)),
        ("pro", ("fp8", "fp4"), 1_292_544, 1_288_048, (4.935, 5)),
    ],
)
def test_slab_and_checkpoint(
    model: str, formats: tuple[str, str], slab: int, ideal: int, checkpoint: tuple[float, int]
) -> None:
    geometry = CacheGeometry(model_config(model), *formats)
    assert geometry.slab_bytes == slab
    assert total(geometry.block_spans) == ideal
    assert slab <= 1.01 * ideal
    mib, slots = checkpoint
    assert geometry.checkpoint_bytes / 2**20 == pytest.approx(mib, abs=0.001)
    assert geometry.checkpoint_slots == slots


def test_the_least_state_of_a_tail() -> None:
    """C4: 20,480 B a layer at a multiple of 4. C128: none at a multiple of 128, at most 127 rows of 4,096 B."""
    raw = 128 * 1024
    for model, mib, worst in (("flash", 0.41, 10.95), ("pro", 0.586, 16.84)):
        config = model_config(model)
        geometry = CacheGeometry(config, "bf16", "bf16")

        def state(n: int, g: CacheGeometry = geometry) -> int:
            return total(g.tail_spans(n)) - g.config.num_layers * min(raw, 1024 * n)

        assert state(1024) == len(config.layers_of(C4)) * 20_480
        assert state(1024) / 2**20 == pytest.approx(mib, abs=0.005)
        assert max(map(state, range(1024, 1152))) / 2**20 == pytest.approx(worst, abs=0.01)
        assert state(3) == 3 * (len(config.layers_of(C4)) * (8192 + 2048) + len(config.layers_of(C128)) * 4096)


def test_a_block_holds_what_its_tokens_made() -> None:
    g = CacheGeometry(CONFIG, "bf16", "bf16")
    entry, key, c4, c128 = 64, 32, 2, 2
    for tokens, c4_rows, c128_rows in ((3, 0, 0), (4, 1, 0), (127, 31, 0), (128, 32, 1), (255, 63, 1), (256, 64, 2)):
        expected = c4 * c4_rows * (entry + key) + c128 * c128_rows * entry
        assert total(g.open_block_spans(tokens)) == expected
    assert g.block_spans == g.open_block_spans(256)


def test_a_model_without_compressed_layers_has_a_slab_too() -> None:
    g = CacheGeometry(replace(CONFIG, ratios=(SWA, SWA)), "fp32", "fp32")
    assert (g.slab_bytes, g.block_spans, g.sequence_bytes(1000)) == (ALIGN, (), 2 * 16 * 128)


def test_formats_without_a_layout_are_refused_when_built() -> None:
    with pytest.raises(GeometryError):
        CacheGeometry(CONFIG, "fp8", "bf16")
    with pytest.raises(GeometryError):
        CacheGeometry(CONFIG, "bf16", "fp4")


def test_slack_is_not_part_of_the_identity_and_all_else_is() -> None:
    base = CacheGeometry(model_config("flash"), "bf16", "bf16")
    assert replace(base, slack=5).identity == base.identity
    for changes in ({"storage": "fp8"}, {"index": "fp8"}, {"draft_layers": 1}):
        assert replace(base, **changes).identity != base.identity


@st.composite
def geometries(draw: st.DrawFn) -> CacheGeometry:
    """Small models of every mix of layers, formats, slack and draft layers."""
    ratios = tuple(draw(st.lists(st.sampled_from([SWA, C4, C128]), min_size=1, max_size=6)))
    config = replace(
        CONFIG,
        ratios=ratios,
        head_dim=draw(st.sampled_from([72, 136, 200])),
        index_dim=draw(st.sampled_from([32, 64, 96])),
        window=draw(st.sampled_from([16, 100, 128])),
        num_hash_layers=0,
    )
    return CacheGeometry(
        config,
        storage=draw(st.sampled_from(["fp64", "fp32", "bf16", "fp8"])),
        index=draw(st.sampled_from(["fp64", "fp32", "bf16", "fp8", "fp4"])),
        slack=draw(st.sampled_from([0, 1, 5])),
        draft_layers=draw(st.sampled_from([0, 1])),
    )


lengths = st.integers(1, 1100)


def check_regions(regions: tuple[Region, ...], size: int) -> None:
    end = 0
    for region in regions:
        assert region.offset % ALIGN == 0
        assert region.offset >= end
        end = region.offset + region.nbytes
        assert all(size % part == 0 for part in region.row.parts)
    assert end <= size


@given(geometries())
def test_regions_are_aligned_and_apart_and_one_row_matrix_each(g: CacheGeometry) -> None:
    check_regions(g.slab_regions, g.slab_bytes)
    check_regions(g.tail_regions, g.tail_bytes)
    assert g.slab_bytes % ALIGN == 0
    assert g.tail_bytes % ALIGN == 0
    for region in g.tail_regions:
        if region.kind == "raw":
            assert region.page_rows == RAW_PAGE
            assert all(region.page_bytes % part == 0 for part in region.row.parts)


def check_spans(spans: tuple[Span, ...], regions: tuple[Region, ...]) -> None:
    """No byte twice, none outside the regions."""
    inside = [(region.offset, region.offset + region.nbytes) for region in regions]
    end = -1
    for offset, length in sorted(spans):
        assert length > 0
        assert offset >= end
        end = offset + length
        covered = sum(max(0, min(end, stop) - max(offset, start)) for start, stop in inside)
        assert covered == length


@given(geometries(), lengths)
def test_spans_lie_in_regions_and_never_overlap(g: CacheGeometry, n: int) -> None:
    check_spans(g.tail_spans(n), g.tail_regions)
    check_spans(g.open_block_spans((n - 1) % BLOCK_TOKENS + 1), g.slab_regions)


@given(geometries(), lengths)
def test_sequence_bytes_are_its_blocks_and_its_tail(g: CacheGeometry, n: int) -> None:
    complete, rest = divmod(n, BLOCK_TOKENS)
    blocks = [g.block_spans] * complete + ([g.open_block_spans(rest)] if rest else [])
    assert len(blocks) == g.slots(n)
    assert g.sequence_bytes(n) == sum(map(total, blocks)) + total(g.tail_spans(n))


@given(geometries(), st.integers(1, 1100))
def test_a_complete_sequence_is_the_ideal_plus_state(g: CacheGeometry, n: int) -> None:
    """What travels of entries and windows is exactly the published arithmetic."""
    ideal = sum(ideal_bytes(g.config, g.storage, g.index, n).values())
    other = {"state", "index_state", "residual"}
    ranges = [
        (r.offset, r.offset + r.nbytes) for r in g.tail_regions if r.kind in other or r.layer >= g.config.num_layers
    ]
    state = sum(length for offset, length in split(g.tail_spans(n), ranges) if any(a <= offset < b for a, b in ranges))
    assert g.sequence_bytes(n) - state == ideal


def split(spans: tuple[Span, ...], ranges: list[tuple[int, int]]) -> list[Span]:
    """Spans cut at the ends of ranges, since neighbours are merged."""
    cuts = sorted({edge for pair in ranges for edge in pair})
    pieces = []
    for offset, length in spans:
        edges = [offset, *(cut for cut in cuts if offset < cut < offset + length), offset + length]
        pieces += [(a, b - a) for a, b in pairwise(edges)]
    return pieces


def filled_tail(g: CacheGeometry, n: int) -> NDArray[np.int64]:
    """A tail in which every byte tells region, position, part and place in the row, by addressing written anew."""
    tail = np.full(g.tail_bytes, -1, dtype=np.int64)
    for number, region in enumerate(g.tail_regions):
        for position in range(max(0, n - region.rows), n) if region.kind != "residual" else [0]:
            page, row = divmod(position % region.rows, region.page_rows)
            start = region.offset + page * region.page_bytes
            for part, width in enumerate(region.row.parts):
                values = ((number * 2048 + position) * 2 + part) * 65_536 + np.arange(width)
                tail[start + row * width : start + (row + 1) * width] = values
                start += region.page_rows * width
    return tail


def gathered(g: CacheGeometry, n: int) -> NDArray[np.int64]:
    tail = filled_tail(g, n)
    return np.concatenate([tail[offset : offset + length] for offset, length in g.tail_spans(n)])


@given(geometries(), lengths)
def test_what_travels_does_not_depend_on_slack(g: CacheGeometry, n: int) -> None:
    stream = gathered(replace(g, slack=0), n)
    assert (stream >= 0).all()
    for slack in (1, 5):
        np.testing.assert_array_equal(gathered(replace(g, slack=slack), n), stream)


@cache
def tiny_geometry() -> CacheGeometry:
    return CacheGeometry(CONFIG, "bf16", "bf16")


@given(lengths)
def test_the_tail_holds_the_rows_that_the_next_token_needs(n: int) -> None:
    """Per kind, the positions that travel, told from the bytes themselves."""
    g = tiny_geometry()
    seen: dict[int, set[tuple[int, int]]] = {}
    for value in gathered(g, n)[::4].tolist():
        rest, place = divmod(value, 65_536)
        number, position = divmod(rest // 2, 2048)
        seen.setdefault(number, set()).add((position, place))
    for number, region in enumerate(g.tail_regions):
        positions = {position for position, _ in seen.get(number, set())}
        assert positions == wanted_positions(g.config, region, n)
        halves = {p for p, place in seen.get(number, set()) if place >= region.row.nbytes // 2}
        if region.kind != "raw" and region.layer in g.config.layers_of(C4):
            assert halves == set(range(n // 4 * 4, n))


def wanted_positions(config: ModelConfig, region: Region, n: int) -> set[int]:
    if region.kind == "raw":
        return set(range(max(0, n - config.window), n))
    if region.layer in config.layers_of(C128):
        return set(range(n // 128 * 128, n))
    return set(range(max(0, n // 4 * 4 - 4), n))
