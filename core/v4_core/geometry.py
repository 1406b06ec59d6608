"""The layout of blocks, tails and checkpoints, computed from a model config and the storage formats.

This is the only file that multiplies row sizes. Other modules ask it for regions (where the rows of one kind and layer
are stored), spans (the bytes that exist after n tokens, in transfer order) or sizes. All offsets and sizes are bytes.

    slab = [indexer keys of each C4 layer][entries of each C4 layer][entries of each C128 layer]
    tail = [raw ring of each layer][C4 main states][C4 indexer states][C128 states]
           [raw ring of each draft layer][draft residual]

A slab is the slot of one block. A state row is [kv, score] of the first half of its channels, then of the second half
(C4 only), so that the part which a closed C4 window still needs is the front of the row. Rings are addressed by
position modulo (window + slack).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from v4_core.blocks import BLOCK_TOKENS
from v4_core.config import C4, C128, ModelConfig
from v4_core.formats import RowFormat, index_row, main_row, state_row

ALIGN = 128
RAW_PAGE = 64  # raw rows per page of a tail
C4_WINDOW = 8  # positions whose state rows are combined into one entry of a C4 layer
C128_WINDOW = 128
C4_ENTRIES = BLOCK_TOKENS // C4
C128_ENTRIES = BLOCK_TOKENS // C128
SCRATCH_TAILS = 2  # live tails that an engine keeps besides those of its sequences
LAYOUT_VERSION = 1

Span = tuple[int, int]  # (offset, length)
_Wanted = tuple[str, int, int, RowFormat, int, int]  # a Region without its offset


@dataclass(frozen=True)
class Region:
    """The rows of one kind and layer in a slab or tail, from `offset` on, in pages of `page_rows` rows.

    A page holds part 0 of all its rows, then part 1 of all its rows.
    """

    kind: str  # index | entry | raw | state | index_state | residual
    layer: int
    rows: int
    row: RowFormat
    offset: int
    page_rows: int
    page_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes from `offset` to the end of the last page."""
        return -(-self.rows // self.page_rows) * self.page_bytes

    def spans(self, first: int, count: int) -> Iterator[Span]:
        """Yields the bytes of rows first .. first+count-1: part 0 of all of them, then part 1 of all of them."""
        for part in range(len(self.row.parts)):
            yield from self.part_spans(part, first, count)

    def part_spans(self, part: int, first: int, count: int, prefix: int | None = None) -> Iterator[Span]:
        """Yields one part of rows first .. first+count-1; with `prefix`, only that many first bytes of each row."""
        width = self.row.parts[part]
        base = self.offset + self.page_rows * sum(self.row.parts[:part])
        end = first + count
        while first < end:
            page, row = divmod(first, self.page_rows)
            n = min(end - first, self.page_rows - row)
            start = base + page * self.page_bytes + row * width
            if prefix is None:
                yield start, n * width
            else:
                yield from ((start + i * width, prefix) for i in range(n))
            first += n


@dataclass(frozen=True)
class CacheGeometry:
    """The layout of one model's cache in a pair of storage formats. Raises GeometryError if there is none."""

    config: ModelConfig
    storage: str  # raw rows and entries: fp64 | fp32 | bf16 | fp8
    index: str  # indexer keys: one of the above, or fp4
    slack: int = 0  # positions beyond each window that a ring keeps, for rolling back drafts
    draft_layers: int = 0  # draft layers for whose raw window and last residual the tail has space

    def __post_init__(self) -> None:
        _ = self.entry_row, self.index_row  # raise here, not at first use

    @cached_property
    def entry_row(self) -> RowFormat:
        """The format of a raw row or an entry."""
        return main_row(self.storage, self.config.head_dim, self.config.rope_dim)

    @cached_property
    def index_row(self) -> RowFormat:
        """The format of an indexer key."""
        return index_row(self.index, self.config.index_dim)

    @cached_property
    def slab_regions(self) -> tuple[Region, ...]:
        """The regions of a slab in order of their offsets."""
        c4, c128 = self.config.layers_of(C4), self.config.layers_of(C128)
        wanted = [("index", layer, C4_ENTRIES, self.index_row) for layer in c4]
        wanted += [("entry", layer, C4_ENTRIES, self.entry_row) for layer in c4]
        wanted += [("entry", layer, C128_ENTRIES, self.entry_row) for layer in c128]
        return _place([(*w, w[2], w[2] * w[3].nbytes) for w in wanted])

    @cached_property
    def slab_bytes(self) -> int:
        """Bytes of a block's slot."""
        return max(ALIGN, _round_up(_end(self.slab_regions), _unit(self.slab_regions)))

    @cached_property
    def tail_regions(self) -> tuple[Region, ...]:
        """The regions of a live tail in order of their offsets."""
        c, d, di = self.config, self.config.head_dim, self.config.index_dim
        c4, c128 = c.layers_of(C4), c.layers_of(C128)
        raw_rows, page = c.window + self.slack, RAW_PAGE * self.entry_row.nbytes
        page = _round_up(page, math.lcm(ALIGN, *self.entry_row.parts))

        def raw(layer: int) -> _Wanted:
            return "raw", layer, raw_rows, self.entry_row, RAW_PAGE, page

        def state(kind: str, layer: int, window: int, channels: int) -> _Wanted:
            row, rows = state_row(self.storage, channels), window + self.slack
            return kind, layer, rows, row, rows, rows * row.nbytes

        wanted = [raw(layer) for layer in range(c.num_layers)]
        wanted += [state("state", layer, C4_WINDOW, 4 * d) for layer in c4]
        wanted += [state("index_state", layer, C4_WINDOW, 4 * di) for layer in c4]
        wanted += [state("state", layer, C128_WINDOW, 2 * d) for layer in c128]
        wanted += [raw(c.num_layers + i) for i in range(self.draft_layers)]
        if self.draft_layers:
            row = state_row(self.storage, c.hc_mult * c.hidden_size)
            wanted.append(("residual", c.num_layers, 1, row, 1, row.nbytes))
        return _place(wanted)

    @cached_property
    def tail_bytes(self) -> int:
        """Bytes of a live tail's slot."""
        return _round_up(_end(self.tail_regions), _unit(self.tail_regions))

    @cached_property
    def checkpoint_bytes(self) -> int:
        """Bytes of a packed tail at a block boundary."""
        return total(self.tail_spans(BLOCK_TOKENS))

    @cached_property
    def checkpoint_slots(self) -> int:
        """Block slots that hold one checkpoint."""
        return -(-self.checkpoint_bytes // self.slab_bytes)

    @cached_property
    def block_spans(self) -> tuple[Span, ...]:
        """Bytes of a complete block, without padding."""
        return self.open_block_spans(BLOCK_TOKENS)

    def open_block_spans(self, tokens: int) -> tuple[Span, ...]:
        """The bytes of a block's entries after `tokens` (1..256) of its positions were computed."""
        return _merge(
            span for region in self.slab_regions for span in region.spans(0, tokens * region.rows // BLOCK_TOKENS)
        )

    def tail_spans(self, tokens: int) -> tuple[Span, ...]:
        """The bytes of a tail that the next token can need after `tokens` tokens, each region in order of position.

        The order does not depend on `slack`, so workers with rings of different sizes can exchange state.
        """
        return _tail_spans(self, tokens)

    def sequence_bytes(self, tokens: int) -> int:
        """Bytes that are transferred for a whole sequence of `tokens` tokens: its blocks and its tail."""
        complete, rest = divmod(tokens, BLOCK_TOKENS)
        open_bytes = total(self.open_block_spans(rest)) if rest else 0
        return complete * total(self.block_spans) + open_bytes + total(self.tail_spans(tokens))

    def slots(self, tokens: int) -> int:
        """Block slots of a sequence of `tokens` tokens."""
        return -(-tokens // BLOCK_TOKENS)

    def tails_bytes(self, sequences: int) -> int:
        """Bytes of a cache that hold live tails, for this number of sequences."""
        return (sequences + SCRATCH_TAILS) * self.tail_bytes

    def slots_within(self, size: int, sequences: int) -> int:
        """Block slots of a cache of `size` bytes; negative if not even the live tails fit."""
        return (size - self.tails_bytes(sequences)) // self.slab_bytes

    def least_slots(self, tokens: int) -> int:
        """The fewest slots that can serve a sequence of `tokens` tokens: its blocks, the next one and a checkpoint."""
        return self.slots(tokens) + 1 + self.checkpoint_slots

    @property
    def identity(self) -> str:
        """The layout properties that two workers must share, as text for the fingerprint. `slack` may differ."""
        formats = f"storage={self.storage} index={self.index}"
        return f"layout={LAYOUT_VERSION} {formats} draft_layers={self.draft_layers}"


def total(spans: Iterable[Span]) -> int:
    """The total length of the spans in bytes."""
    return sum(length for _, length in spans)


def ideal_bytes(config: ModelConfig, storage: str, index: str, tokens: int) -> dict[str, int]:
    """The minimum bytes of one sequence by layer type, with windows, without compressor state and padding."""
    entry = main_row(storage, config.head_dim, config.rope_dim).nbytes
    key = index_row(index, config.index_dim).nbytes
    window = min(config.window, tokens) * entry
    return {
        "swa": len(config.layers_of(0)) * window,
        "c4": len(config.layers_of(C4)) * (window + tokens // C4 * (entry + key)),
        "c128": len(config.layers_of(C128)) * (window + tokens // C128 * entry),
    }


def v32_bytes(config: ModelConfig, tokens: int) -> int:
    """Bytes of a V3.2-style bf16 cache (576 latent and 128 index channels per token) with the same number of layers."""
    return config.num_layers * tokens * (576 + 128) * 2


@lru_cache(maxsize=256)  # about 0.1 MB and 1 ms each for Pro
def _tail_spans(g: CacheGeometry, tokens: int) -> tuple[Span, ...]:
    return _merge(span for region in g.tail_regions for span in _live(g, region, tokens))


def _live(g: CacheGeometry, region: Region, n: int) -> Iterator[Span]:
    """Yields the spans of one tail region that a sequence of n tokens still needs."""
    if region.kind == "residual":
        yield from region.spans(0, min(n, 1))
    elif region.kind == "raw":
        yield from _ring(region, max(0, n - g.config.window), n)
    elif region.layer in g.config.layers_of(C128):
        yield from _ring(region, n // C128 * C128, n)
    else:
        closed = n // C4 * C4
        yield from _ring(region, max(0, closed - C4), closed, region.row.nbytes // 2)
        yield from _ring(region, closed, n)


def _ring(region: Region, start: int, end: int, prefix: int | None = None) -> Iterator[Span]:
    """Yields the rows of positions start .. end-1, part by part; a ring may wrap within them."""
    for part in range(len(region.row.parts)):
        position = start
        while position < end:
            row = position % region.rows
            n = min(end - position, region.rows - row)
            yield from region.part_spans(part, row, n, prefix)
            position += n


def _place(wanted: list[_Wanted]) -> tuple[Region, ...]:
    regions, offset = [], 0
    for kind, layer, rows, row, page_rows, page_bytes in wanted:
        offset = _round_up(offset, ALIGN)
        regions.append(Region(kind, layer, rows, row, offset, page_rows, page_bytes))
        offset += regions[-1].nbytes
    return tuple(regions)


def _end(regions: tuple[Region, ...]) -> int:
    return regions[-1].offset + regions[-1].nbytes if regions else 0


def _unit(regions: tuple[Region, ...]) -> int:
    """A common multiple of all parts of all rows, so that a layer's rows form one 2-D matrix over all slots."""
    return math.lcm(ALIGN, *(part for region in regions for part in region.row.parts))


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _merge(spans: Iterable[Span]) -> tuple[Span, ...]:
    merged: list[Span] = []
    for offset, length in spans:
        if not length:
            continue
        if merged and sum(merged[-1]) == offset:
            merged[-1] = (merged[-1][0], merged[-1][1] + length)
        else:
            merged.append((offset, length))
    return tuple(merged)
