"""Text to packed token ids, off the event loop, from a checkpoint's `tokenizer.json`.

Special tokens are found by name. Texts are encoded by a tokenizer that knows no special token at all, so nothing that a
message contains can become one. The tokenizer's own batch call releases the GIL; `encode` would hold it.
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

_ENTRY_OVERHEAD = 200  # bytes that a cached segment costs beside its text and ids


class SegmentCache:
    """Least recently used texts with their packed ids, bounded in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._entries: OrderedDict[str, bytes] = OrderedDict()

    def get(self, text: str) -> bytes | None:
        """Packed ids of the text, if kept."""
        packed = self._entries.get(text)
        if packed is not None:
            self._entries.move_to_end(text)
        return packed

    def put(self, text: str, packed: bytes) -> None:
        """Keep, making room by forgetting the oldest; what alone exceeds the bound is not kept."""
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
    """One checkpoint's tokenizer. Its methods belong to the event loop's thread."""

    def __init__(self, model_path: Path, cache_bytes: int) -> None:
        """Raises ConfigError if the folder has no tokenizer that can be used."""
        data = {**_read(model_path / "tokenizer.json"), "truncation": None, "padding": None}
        added = {t["content"]: t for t in data["added_tokens"]}
        if missing := [name for name in MARKERS if name not in added]:
            raise ConfigError(f"tokenizer.json of {model_path} lacks the special token {missing[0]!r} of DeepSeek V4")
        self._special = {name: int(t["id"]) for name, t in added.items()}
        self._with_markers = HfTokenizer.from_str(json.dumps(data))
        self._plain = HfTokenizer.from_str(json.dumps({**data, "added_tokens": []}))
        self.token_bytes = _token_bytes(data)
        self._check_plain()
        self._cache = SegmentCache(cache_bytes)
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="tokenize")

    def special(self, name: str) -> int:
        """Id of one of DeepSeek V4's markers."""
        return self._special[name]

    async def encode_segments(self, segments: Sequence[Segment]) -> bytes:
        """Packed uint32 ids of a chat prompt."""
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
        """Packed uint32 ids of a raw prompt: here special tokens are recognised, and BOS is put first if missing."""
        if not text.startswith(BOS):
            text = BOS + text
        return (await self._encode(self._with_markers, [text]))[0]

    async def texts(self, prompts: Sequence[bytes]) -> list[str]:
        """What packed ids stand for, special tokens by their names."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, _decode, self._with_markers, prompts)

    def close(self) -> None:
        """End the threads; what is being encoded is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _encode(self, tokenizer: Any, texts: list[str]) -> list[bytes]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _encode, tokenizer, texts)

    def _check_plain(self) -> None:
        """The proof that text cannot become a special token: no marker's spelling encodes to any special id."""
        ids = set(self._special.values())
        for name, encoding in zip(
            self._special, self._plain.encode_batch_fast(list(self._special), add_special_tokens=False), strict=True
        ):
            if ids.intersection(encoding.ids):
                raise ConfigError(f"tokenizer.json has merges that spell the special token {name!r}: drop them")


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
        raise ConfigError(f"{file} does not exist: the model folder must hold its tokenizer") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    if not isinstance(data, dict) or (data.get("model") or {}).get("type") != "BPE":
        raise ConfigError(f"{file} holds no BPE tokenizer, which DeepSeek V4's is")
    if "ByteLevel" not in json.dumps(data.get("decoder")):
        raise ConfigError(f"{file} holds no byte-level tokenizer, which DeepSeek V4's is")
    return data


def _token_bytes(data: dict[str, Any]) -> list[bytes]:
    """Bytes of each id. Special tokens have no text; other added tokens are their own name."""
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
