"""The safetensors shards of a model checkpoint: which files there are, and the types in their headers. Needs no torch.

Knows the file format, eight bytes of little-endian length and a JSON header, and nothing of a model.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from v4_core.errors import ConfigError

_LENGTH_BYTES = 8
_INDEX = "model.safetensors.index.json"

# safetensors' names of the types that weights are computed in, and ours.
_FLOATS = {"BF16": "bf16", "F32": "fp32", "F64": "fp64"}


def is_quantised(kind: str) -> bool:
    """Whether safetensors' type `kind` holds numbers that mean nothing without their scales, or those scales."""
    return kind.startswith(("F4", "F6_", "F8")) or kind in ("I8", "U8")


def most_bytes(stored: Mapping[str, int]) -> str | None:
    """bf16, fp32 or fp64, whichever takes most bytes: some tensors are fp32 in every checkpoint. None without any."""
    return _FLOATS.get(max(_FLOATS, key=lambda kind: stored.get(kind, 0))) if stored.keys() & _FLOATS.keys() else None


def weight_files(folder: Path) -> list[Path]:
    """The shards of a checkpoint, in order. Raises ConfigError where there are none, or not all that are indexed."""
    files = _listed(folder)
    if not files:
        raise ConfigError(f"{folder} holds no *.safetensors: give the folder of a DeepSeek V4 checkpoint")
    if lost := [file.name for file in files if not file.exists()]:
        raise ConfigError(f"{folder} lacks shards that its index names: {', '.join(lost)}")
    return files


def stored_bytes(folder: Path) -> Counter[str]:
    """Bytes of all tensors by safetensors' types; empty where the folder has no weights, or not all of them yet."""
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
                raise ConfigError(f"{file} is no complete safetensors file: download it again")
            for name, tensor in json.loads(stream.read(length)).items():
                if name != "__metadata__":
                    start, end = tensor["data_offsets"]
                    sizes[tensor["dtype"]] += end - start
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} is no readable safetensors file: {error}") from error
    return sizes
