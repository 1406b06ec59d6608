"""Token ids back to text, one at a time. Knows byte-level vocabularies only; never splits a UTF-8 character."""

import codecs
from collections.abc import Sequence


def byte_of_char() -> dict[str, int]:
    """The printable stand-in that byte-level BPE writes for each byte: itself where printable, else 256 and up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table


class Detokenizer:
    """The text of one choice. Constant work per token: bytes are looked up and decoded, nothing is decoded twice."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        """`token_bytes`: the bytes of each id, empty for ids that have no text."""
        self._bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that this token completes; ids beyond the vocabulary have no text."""
        return self._decoder.decode(self._bytes[token] if token < len(self._bytes) else b"")

    def flush(self) -> str:
        """U+FFFD for a character that was begun and never completed."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
