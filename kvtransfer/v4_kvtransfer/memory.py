"""The engine's cache memory as transfers see it: rows of bytes with a geometry. Does not interpret the rows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from v4_core.geometry import CacheGeometry

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class HostMemory:
    """The block slots and live tails of one pool. Raises ValueError if their shapes do not match the geometry."""

    geometry: CacheGeometry
    slabs: Bytes  # [slots, slab_bytes], C-contiguous, writable
    tails: Bytes  # [tails, tail_bytes], C-contiguous, writable

    def __post_init__(self) -> None:
        _check("slabs", self.slabs, self.geometry.slab_bytes)
        _check("tails", self.tails, self.geometry.tail_bytes)


def _check(name: str, array: Bytes, nbytes: int) -> None:
    fits = array.dtype == np.uint8 and array.ndim == 2 and array.shape[1] == nbytes
    if not (fits and array.flags.c_contiguous and array.flags.writeable):
        raise ValueError(f"{name} must be C-contiguous writable uint8 [rows, {nbytes}]")
