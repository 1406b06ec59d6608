"""Encodes text as packed token ids with a checkpoint's `tokenizer.json`, off the event loop.

Special tokens are encoded by name. Texts of a chat are encoded by a tokenizer without special tokens, so no text of a
message can become a special token. The tokenizer's batch calls are used because they release the GIL, which `encode`
would hold.
"""

import asyncio
import json
import os
import sys
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HfTokenizer

from v4_core.errors import ConfigError
from v4_router.chat import BOS, MARKERS, Segment, Special
from v4_router.detokenizer import byte_of_char

_ENTRY_OVERHEAD = 200  # bytes per cached segment, in addition to its text and ids


class SegmentCache:
    """An LRU cache of texts and their packed ids, bounded in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._entries: OrderedDict[str, bytes] = OrderedDict()

    def get(self, text: str) -> bytes | None:
        """Returns the packed ids of the text, or None if it is not cached."""
        packed = self._entries.get(text)
        if packed is not None:
            self._entries.move_to_end(text)
        return packed

    def put(self, text: str, packed: bytes) -> None:
        """Adds an entry, evicting the least recently used ones; an entry that exceeds the bound alone is not added."""
        cost = _cost(text, packed)
        if cost > self._limit or text in self._entries:
            return
        self._entries[text] = packed
        self._used += cost
        while self._used > self._limit:
            self._used -= _cost(*self._entries.popitem(last=False))


def _cost(text: str, packed: bytes) -> int:
    return sys.getsizeof(text) + len(packed) + _ENTRY_OVERHEAD


class Tokenizer:
    """A checkpoint's tokenizer. Its methods must be called on the event loop's thread."""

    def __init__(self, model_path: Path, cache_bytes: int) -> None:
        """Raises ConfigError if the folder has no usable tokenizer."""
        data = {**_read(model_path / "tokenizer.json"), "truncation": None, "padding": None}
        added = {t["content"]: t for t in data["added_tokens"]}
        if missing := [name for name in MARKERS if name not in added]:
            raise ConfigError(
                f"tokenizer.json of {model_path} lacks the special token {missing[0]!r}: give a DeepSeek V4 checkpoint"
            )
        self._special = {name: int(t["id"]) for name, t in added.items()}
        self._with_markers = HfTokenizer.from_str(json.dumps(data))
        self._plain = HfTokenizer.from_str(json.dumps({**data, "added_tokens": []}))
        self.token_bytes = _token_bytes(data)
        self._check_plain()
        self._cache = SegmentCache(cache_bytes)
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="tokenize")

    def special(self, name: str) -> int:
        """Returns the id of a special token."""
        return self._special[name]

    async def encode_segments(self, segments: Sequence[Segment]) -> bytes:
        """Returns the packed uint32 ids of a chat prompt."""
        packed = {s: self._cache.get(s) for s in segments if isinstance(s, str)}
        if missing := [text for text, ids in packed.items() if ids is None]:
            fresh = dict(zip(missing, await self._encode(self._plain, missing), strict=True))
            packed.update(fresh)
            for text, ids in fresh.items():
                self._cache.put(text, ids)
        return b"".join(
            self._special[s.name].to_bytes(4, "little") if isinstance(s, Special) else packed[s] or b""
            for s in segments
        )

    async def encode_raw(self, text: str) -> bytes:
        """Returns the packed uint32 ids of a raw prompt.

        Special tokens in the text are recognized, and BOS is prepended if the text does not begin with it.
        """
        if not text.startswith(BOS):
            text = BOS + text
        return (await self._encode(self._with_markers, [text]))[0]

    async def texts(self, prompts: Sequence[bytes]) -> list[str]:
        """Returns the texts of packed ids, with special tokens by name."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, _decode, self._with_markers, prompts)

    def close(self) -> None:
        """Stops the threads without waiting for texts that are being encoded."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _encode(self, tokenizer: Any, texts: list[str]) -> list[bytes]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _encode, tokenizer, texts)

    def _check_plain(self) -> None:
        """Raises ConfigError if the plain tokenizer encodes the name of a special token to a special token's id."""
        ids = set(self._special.values())
        for name, encoding in zip(
            self._special, self._plain.encode_batch_fast(list(self._special), add_special_tokens=False), strict=True
        ):
            if ids.intersection(encoding.ids):
                raise ConfigError(
                    f"tokenizer.json has merges that produce the special token {name!r} from text: remove them"
                )


def _encode(tokenizer: Any, texts: list[str]) -> list[bytes]:
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [array("I", encoding.ids).tobytes() for encoding in encodings]


def _decode(tokenizer: Any, prompts: Sequence[bytes]) -> list[str]:
    ids = [array("I", packed).tolist() for packed in prompts]
    texts: list[str] = tokenizer.decode_batch(ids, skip_special_tokens=False)
    return texts


def _read(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist: the model folder must contain the model's tokenizer") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    if not isinstance(data, dict) or (data.get("model") or {}).get("type") != "BPE":
        raise ConfigError(f"{file} is not a BPE tokenizer, which DeepSeek V4 uses: give a DeepSeek V4 checkpoint")
    if "ByteLevel" not in json.dumps(data.get("decoder")):
        raise ConfigError(
            f"{file} is not a byte-level tokenizer, which DeepSeek V4 uses: give a DeepSeek V4 checkpoint"
        )
    return data


def _token_bytes(data: dict[str, Any]) -> list[bytes]:
    """Returns the bytes of each token id: b"" for a special token, and the name of any other added token."""
    vocab: dict[str, int] = data["model"]["vocab"]
    added = data["added_tokens"]
    highest = max(*vocab.values(), *(int(t["id"]) for t in added))
    table = [b""] * (highest + 1)
    byte_of = byte_of_char()
    for name, token in vocab.items():
        table[token] = bytes(byte_of[c] for c in name if c in byte_of)
    for t in added:
        table[int(t["id"])] = b"" if t["special"] else t["content"].encode()
    return table
