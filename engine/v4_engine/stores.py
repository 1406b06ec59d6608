"""The cache's memory on one device, as one matrix of rows for each layer and kind.

Arena and tails are byte tensors. A RowStore is one region's rows in all slots; row indices are int64, slot * stride +
r. Reads return values in a compute type, and writes round to the storage format. This file knows no sequences and no
positions.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from v4_core.errors import GeometryError
from v4_core.geometry import CacheGeometry, Region, Span

_TORCH = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}


class RowStore:
    """The rows of one region in all slots of `memory` (uint8, one slot after another)."""

    def __init__(self, memory: Tensor, region: Region) -> None:
        if region.row.name not in _TORCH:
            raise GeometryError(f"{region.row.name} storage is not supported yet: use bf16, fp32 or fp64")
        self.dtype = _TORCH[region.row.name]
        items = self.dtype.itemsize
        flat = memory.view(self.dtype)[region.offset // items :]
        rows = flat.numel() // region.row.width
        self.rows = flat[: rows * region.row.width].view(rows, region.row.width)

    def read(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Return rows [*index.shape, width] in `dtype`."""
        return self.rows[index].to(dtype)

    def write(self, index: Tensor, values: Tensor) -> None:
        """Store values [n, width] at row indices [n]."""
        self.rows.index_copy_(0, index, values.to(self.dtype))

    def round(self, values: Tensor) -> Tensor:
        """Return the values as they will be read after they are stored, in their own type."""
        return values if values.dtype == self.dtype else values.to(self.dtype).to(values.dtype)


class CacheMemory:
    """The arena of block slots and the array of live tails, with the row stores of every layer."""

    def __init__(self, geometry: CacheGeometry, slots: int, tails: int, device: torch.device) -> None:
        self.geometry = geometry
        self.slots, self.tails = slots, tails
        self.arena = torch.zeros(slots * geometry.slab_bytes, dtype=torch.uint8, device=device)
        self.tail_array = torch.zeros(tails * geometry.tail_bytes, dtype=torch.uint8, device=device)
        self.entries: dict[int, RowStore] = {}
        self.index_keys: dict[int, RowStore] = {}
        self.raw: dict[int, RowStore] = {}
        self.states: dict[int, RowStore] = {}
        self.index_states: dict[int, RowStore] = {}
        by_kind = {
            "entry": self.entries,
            "index": self.index_keys,
            "raw": self.raw,
            "state": self.states,
            "index_state": self.index_states,
        }
        for region in geometry.slab_regions:
            by_kind[region.kind][region.layer] = RowStore(self.arena, region)
        for region in geometry.tail_regions:
            if region.kind in by_kind:
                by_kind[region.kind][region.layer] = RowStore(self.tail_array, region)

    def poison(self) -> None:
        """Fill all memory with NaN, so that a read of an unwritten row shows in the output."""
        self.arena.fill_(255)
        self.tail_array.fill_(255)

    def poison_slot(self, slot: int) -> None:
        """Fill one block slot with NaN."""
        size = self.geometry.slab_bytes
        self.arena[slot * size : (slot + 1) * size].fill_(255)

    def poison_tail(self, tail: int) -> None:
        """Fill one live tail with NaN."""
        size = self.geometry.tail_bytes
        self.tail_array[tail * size : (tail + 1) * size].fill_(255)

    def copy_slot(self, source: int, target: int) -> None:
        """Copy one block slot."""
        size = self.geometry.slab_bytes
        self.arena[target * size : (target + 1) * size] = self.arena[source * size : (source + 1) * size]

    def copy_tail(self, source: int, target: int) -> None:
        """Copy one live tail."""
        size = self.geometry.tail_bytes
        self.tail_array[target * size : (target + 1) * size] = self.tail_array[source * size : (source + 1) * size]

    def pack_tail(self, tail: int, spans: Sequence[Span], slots: Sequence[int]) -> None:
        """Copy the spans of a live tail, without gaps, into block slots."""
        base, size = tail * self.geometry.tail_bytes, self.geometry.slab_bytes
        packed = torch.cat([self.tail_array[base + offset : base + offset + length] for offset, length in spans])
        for slot, part in zip(slots, packed.split(size), strict=True):
            self.arena[slot * size : slot * size + part.numel()] = part

    def unpack_tail(self, slots: Sequence[int], spans: Sequence[Span], tail: int) -> None:
        """Copy packed spans from block slots into a live tail. The tail's other rows do not change."""
        base, size = tail * self.geometry.tail_bytes, self.geometry.slab_bytes
        packed = torch.cat([self.arena[slot * size : (slot + 1) * size] for slot in slots])
        start = 0
        for offset, length in spans:
            self.tail_array[base + offset : base + offset + length] = packed[start : start + length]
            start += length

    def host_view(self) -> tuple[np.ndarray, np.ndarray]:
        """Return arena and tails as uint8 arrays that share this memory (CPU only).

        Shapes: [slots, slab_bytes] and [tails, tail_bytes].
        """
        g = self.geometry
        arena = self.arena.numpy().reshape(self.slots, g.slab_bytes)
        return arena, self.tail_array.numpy().reshape(self.tails, g.tail_bytes)
