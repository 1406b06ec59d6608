"""Decodes token ids into text, one at a time. Supports byte-level vocabularies only; never splits a character."""

import codecs
from collections.abc import Sequence


def byte_of_char() -> dict[str, int]:
    """Returns the byte of each character of a byte-level BPE vocabulary.

    A printable byte is represented by the character of the same code point, the others by characters from 256 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table


class Detokenizer:
    """Decodes the tokens of one choice. The work per token is constant: no byte is decoded twice."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        """`token_bytes`: the bytes of each token id; empty for ids without text."""
        self._bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Returns the characters that this token completes; "" for an id beyond the vocabulary."""
        return self._decoder.decode(self._bytes[token] if token < len(self._bytes) else b"")

    def flush(self) -> str:
        """Ends the text: returns U+FFFD if it ends with an incomplete character, else ""."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
