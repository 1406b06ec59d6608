"""What two workers must have in common before one may continue the other's state, as one short text.

Covers whatever changes a stored value: the config fields that shape the forward, the layout, the choices of the
engine and the weights themselves. Weights are sampled, not read: each shard's header (names, shapes, types) and
64 KiB from the start, the middle and the end of its data, so that any retrained or converted checkpoint differs and
a large one costs milliseconds. Folder names and the order of files do not matter.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from v4_core.config import ModelConfig
from v4_core.errors import ConfigError
from v4_core.geometry import CacheGeometry

SAMPLE_BYTES = 64 * 1024
_DIGEST_BYTES = 16
_LENGTH_BYTES = 8  # a safetensors file starts with the length of its JSON header, little-endian

# Fields of ModelConfig that no stored value depends on: limits and how the checkpoint's files are kept.
_NOT_SHAPING = {"max_position", "eos_token_ids", "bos_token_id", "draft_layers"}


def fingerprint(
    config: ModelConfig, geometry: CacheGeometry, choices: Mapping[str, str], weight_files: Sequence[Path]
) -> str:
    """32 hex digits. `choices` are the engine's own, e.g. {"hadamard": "off", "round": "made"}.

    `weight_files` are safetensors shards. Raises ConfigError where one cannot be read.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"v4serve-state")
    for field in dataclasses.fields(config):
        if field.name not in _NOT_SHAPING:
            _add(digest, f"{field.name}={getattr(config, field.name)!r}".encode())
    _add(digest, geometry.identity.encode())
    for name, value in sorted(choices.items()):
        _add(digest, f"{name}={value}".encode())
    for file in sorted(weight_files, key=lambda path: path.name):
        _add(digest, file.name.encode())
        _add(digest, _shard(file))
    return digest.hexdigest()


def tokenizer_digest(folder: Path) -> str:
    """32 hex digits of a checkpoint's tokenizer; empty if it has none. Raises ConfigError where it cannot be read.

    No stored value depends on it, so that it is no part of the fingerprint: but token ids mean what it says.
    """
    file = folder / "tokenizer.json"
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=_DIGEST_BYTES).hexdigest()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error


def _add(digest: Any, part: bytes) -> None:
    """Length first, so that no two sequences of parts are the same bytes."""
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)


def _shard(file: Path) -> bytes:
    """Digest of a shard's size, header and samples of its data."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            header = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            data = _LENGTH_BYTES + header
            if size < _LENGTH_BYTES or data > size:
                raise ConfigError(f"{file} is no complete safetensors file: download it again")
            _add(digest, size.to_bytes(8, "little"))
            _add(digest, stream.read(header))
            for offset in _sample_offsets(data, size):
                _add(digest, _sample(stream, offset))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    return digest.digest()


def _sample_offsets(data: int, size: int) -> tuple[int, int, int]:
    """Where the samples of bytes data .. size-1 start: its start, its middle, its end."""
    last = max(data, size - SAMPLE_BYTES)
    return data, (data + last) // 2, last


def _sample(stream: BinaryIO, offset: int) -> bytes:
    stream.seek(offset)
    return stream.read(SAMPLE_BYTES)
