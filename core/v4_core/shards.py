"""Lists the safetensors shards of a checkpoint and reads the types in their headers. Needs no torch.

Knows the file format (a header length of eight bytes, little-endian, and a JSON header), but no model.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from v4_core.errors import ConfigError

_LENGTH_BYTES = 8
_INDEX = "model.safetensors.index.json"

# safetensors' names of the compute types, and the names used here.
_FLOATS = {"BF16": "bf16", "F32": "fp32", "F64": "fp64"}


def is_quantised(kind: str) -> bool:
    """Whether tensors of safetensors' type `kind` are quantised values or their scales."""
    return kind.startswith(("F4", "F6_", "F8")) or kind in ("I8", "U8")


def most_bytes(stored: Mapping[str, int]) -> str | None:
    """The type of bf16, fp32 and fp64 that takes the most bytes; None if there is none of them.

    The largest share decides because every checkpoint has some fp32 tensors.
    """
    return _FLOATS.get(max(_FLOATS, key=lambda kind: stored.get(kind, 0))) if stored.keys() & _FLOATS.keys() else None


def weight_files(folder: Path) -> list[Path]:
    """Returns a checkpoint's shards in order. Raises ConfigError if there are none or an indexed one is missing."""
    files = _listed(folder)
    if not files:
        raise ConfigError(f"{folder} has no *.safetensors files: give the folder of a DeepSeek V4 checkpoint")
    if missing := [file.name for file in files if not file.exists()]:
        raise ConfigError(f"{folder} lacks shards that its index names: {', '.join(missing)}")
    return files


def stored_bytes(folder: Path) -> Counter[str]:
    """Bytes of all tensors by safetensors' types; empty if the folder has no weights or a shard is missing."""
    files = _listed(folder)
    if not all(file.exists() for file in files):
        return Counter()
    return sum((_sizes(file) for file in files), Counter())


def _listed(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.exists():
        return sorted(folder.glob("*.safetensors"))
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        return [folder / name for name in names]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index} is not a safetensors index: {error}") from error


def _sizes(file: Path) -> Counter[str]:
    """Bytes of a shard's tensors by type."""
    sizes: Counter[str] = Counter()
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if length > file.stat().st_size:
                raise ConfigError(f"{file} is not a complete safetensors file: download it again")
            for name, tensor in json.loads(stream.read(length)).items():
                if name != "__metadata__":
                    start, end = tensor["data_offsets"]
                    sizes[tensor["dtype"]] += end - start
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} is not a valid safetensors file: {error}") from error
    return sizes
