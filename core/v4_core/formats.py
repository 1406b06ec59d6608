"""The bytes of one cache row in each storage format. Does not round values: that is the engine's task.

A row has one part (values) or two (values, then scales). fp8 main rows keep their rotary channels in bf16.
"""

from dataclasses import dataclass

from v4_core.errors import GeometryError

STORAGE_FORMATS = ("fp64", "fp32", "bf16", "fp8")
INDEX_FORMATS = (*STORAGE_FORMATS, "fp4")
ITEM_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2}
_FP8_BLOCK = 64  # channels that share one ue8m0 scale byte
_FP4_BLOCK = 32


@dataclass(frozen=True)
class RowFormat:
    """A row of `width` channels in the format `name`; `parts` has the bytes of its parts in storage order."""

    name: str
    width: int
    parts: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the row."""
        return sum(self.parts)


def main_row(storage: str, head_dim: int, rope_dim: int) -> RowFormat:
    """The format of a raw row or an entry of `head_dim` channels, of which the last `rope_dim` are rotary.

    Raises GeometryError if the format is unknown or does not fit the channels.
    """
    if storage in ITEM_BYTES:
        return RowFormat(storage, head_dim, (head_dim * ITEM_BYTES[storage],))
    if storage != "fp8":
        raise GeometryError(f"storage format {storage!r} is unknown; known: {', '.join(STORAGE_FORMATS)}")
    plain = head_dim - rope_dim
    if plain % _FP8_BLOCK:
        raise GeometryError(
            f"fp8 storage needs head_dim - qk_rope_head_dim ({plain}) in multiples of {_FP8_BLOCK}: use bf16"
        )
    scales = -(-(plain // _FP8_BLOCK) // 8) * 8
    return RowFormat("fp8", head_dim, (plain + 2 * rope_dim, scales))


def index_row(storage: str, index_dim: int) -> RowFormat:
    """The format of an indexer key of `index_dim` channels.

    Raises GeometryError if the format is unknown or does not fit the channels.
    """
    if storage in ITEM_BYTES:
        return RowFormat(storage, index_dim, (index_dim * ITEM_BYTES[storage],))
    if storage == "fp8":
        return RowFormat("fp8", index_dim, (index_dim, 4))
    if storage != "fp4":
        raise GeometryError(f"index format {storage!r} is unknown; known: {', '.join(INDEX_FORMATS)}")
    if index_dim % _FP4_BLOCK:
        raise GeometryError(f"fp4 index keys need index_head_dim ({index_dim}) in multiples of {_FP4_BLOCK}: use fp8")
    return RowFormat("fp4", index_dim, (index_dim // 2, index_dim // _FP4_BLOCK))


def state_row(storage: str, channels: int) -> RowFormat:
    """The format of a compressor state row of `channels` values (kv and score): fp32, or fp64 for fp64 storage."""
    name = "fp64" if storage == "fp64" else "fp32"
    return RowFormat(name, channels, (channels * ITEM_BYTES[name],))
