"""The fingerprint: one line of text that must be equal on two workers before one may continue the other's state.

It covers everything that changes a stored value or the end of an output: the weights, the config fields that shape the
forward pass, the cache layout, the engine's numerical choices, and the tokens that end an output. Each of these is a
separate fact in the text, so that an error can say which of them differ.

The weights enter by a digest of every byte of each stored tensor, under DeepSeek's name of the tensor. The spelling of
names, the division into files and the order of hashing do not matter. Ranks that read different tensors can merge their
digests. Quantised tensors and their scales are treated like any other tensors.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

from v4_core.config import ModelConfig
from v4_core.errors import ConfigError
from v4_core.geometry import CacheGeometry

_DIGEST_BYTES = 16

# Fields of ModelConfig that change no stored value, and fields that are separate facts of the fingerprint.
_NOT_SHAPING = {"max_position", "bos_token_id", "draft_layers", "dtype", "quantised", "eos_token_ids"}


@dataclasses.dataclass(frozen=True)
class TensorDigest:
    """The digest of one tensor of a checkpoint."""

    dtype: str
    shape: tuple[int, ...]
    xxh3: bytes  # 128 bits, over all bytes of the tensor in row-major order, little-endian


def fingerprint(
    config: ModelConfig, geometry: CacheGeometry, choices: Mapping[str, str], tensors: Mapping[str, TensorDigest]
) -> str:
    """Returns `name=value` of every fact, separated by spaces.

    `choices` has the engine's numerical choices, for example {"hadamard": "off", "round": "made"}. `tensors` has all
    tensors that the forward pass uses, by DeepSeek's names.
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
    """Names the facts in which two fingerprints differ, for messages: `eos_token_id (1 here, 2 there)`."""
    ours, theirs = _facts(here), _facts(there)
    if ours.keys() != theirs.keys():  # the other worker runs another release
        return f"fingerprint ({here} here, {there} there)"
    return ", ".join(
        f"{name} ({value} here, {theirs[name]} there)" for name, value in ours.items() if value != theirs[name]
    )


def _facts(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (fact.partition("=") for fact in text.split(" "))}


def _digest(parts: Mapping[str, object]) -> str:
    """A digest of names and values, independent of their order."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"v4serve-state")
    for name, value in sorted(parts.items()):
        for part in (name.encode(), repr(value).encode()):
            digest.update(len(part).to_bytes(8, "little"))  # no two sequences of parts are the same bytes
            digest.update(part)
    return digest.hexdigest()


def tokenizer_digest(folder: Path) -> str:
    """Returns a digest of a checkpoint's tokenizer in 32 hex digits; empty if there is none.

    It is not part of the fingerprint, because no stored value depends on the tokenizer. Routers and workers compare it,
    because it defines the meaning of token ids. Raises ConfigError if the file cannot be read.
    """
    file = folder / "tokenizer.json"
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=_DIGEST_BYTES).hexdigest()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
