"""What two workers must have in common before one may continue the other's state, as one line of text.

Covers whatever changes a stored value or the end of an answer: the weights themselves, the config fields that shape the
forward, the layout, the choices of the engine, and the tokens that end a generation. Each is a fact of its own in the
text, so that a refusal can say which of them differ.

Weights count by every byte: a digest of each tensor under DeepSeek's name for it, as stored. How tensors are spelt and
split into files does not matter, nor in what order or by whom they were hashed: ranks that read different tensors merge
what they found, and quantised tensors and their scales are tensors like any others.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

from v4_core.config import ModelConfig
from v4_core.errors import ConfigError
from v4_core.geometry import CacheGeometry

_DIGEST_BYTES = 16

# Fields of ModelConfig that no stored value depends on, and those that are facts of their own.
_NOT_SHAPING = {"max_position", "bos_token_id", "draft_layers", "dtype", "quantised", "eos_token_ids"}


@dataclasses.dataclass(frozen=True)
class TensorDigest:
    """One tensor of a checkpoint."""

    dtype: str
    shape: tuple[int, ...]
    xxh3: bytes  # 128 bits, of all its bytes in row-major order, little-endian


def fingerprint(
    config: ModelConfig, geometry: CacheGeometry, choices: Mapping[str, str], tensors: Mapping[str, TensorDigest]
) -> str:
    """`name=value` of every fact, separated by spaces.

    `choices` are the engine's own, e.g. {"hadamard": "off", "round": "made"}; `tensors` are all that the forward uses,
    by DeepSeek's names.
    """
    shaping = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in _NOT_SHAPING
    }
    facts = {
        "weights": _digest(tensors),
        "config": _digest(shaping),
        "layout": _digest({"identity": geometry.identity}),
        "engine": _digest(choices),
        "eos_token_id": ",".join(map(str, config.eos_token_ids)),
    }
    return " ".join(f"{name}={value}" for name, value in facts.items())


def difference(here: str, there: str) -> str:
    """The facts in which two unequal fingerprints differ, for a message, e.g. `eos_token_id (1 here, 2 there)`."""
    ours, theirs = _facts(here), _facts(there)
    if ours.keys() != theirs.keys():  # of another release
        return f"fingerprint ({here} here, {there} there)"
    return ", ".join(
        f"{name} ({value} here, {theirs[name]} there)" for name, value in ours.items() if value != theirs[name]
    )


def _facts(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (fact.partition("=") for fact in text.split(" "))}


def _digest(parts: Mapping[str, object]) -> str:
    """Of names and values, whatever their order."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"v4serve-state")
    for name, value in sorted(parts.items()):
        for part in (name.encode(), repr(value).encode()):
            digest.update(len(part).to_bytes(8, "little"))  # no two sequences of parts are the same bytes
            digest.update(part)
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
