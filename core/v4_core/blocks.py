"""Names blocks by a salted hash chain over the token ids of a block and of all blocks before it.

Two blocks have the same name exactly if their whole prefixes are the same tokens with the same salt (tenant and
fingerprint), so names can be compared across workers. Does not know where a block is stored.
"""

import hashlib
from array import array
from collections.abc import Iterable

BLOCK_TOKENS = 256
NAME_BYTES = 16
_ID_BYTES = 4


def pack_ids(ids: Iterable[int]) -> bytes:
    """Packs token ids as little-endian uint32, the form in which messages carry them."""
    return array("I", ids).tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    """Inverse of pack_ids. Raises ValueError unless the length is a multiple of 4."""
    ids = array("I")
    ids.frombytes(packed)
    return ids.tolist()


def chain_root(salt: bytes) -> bytes:
    """The name before block 0."""
    return hashlib.blake2b(salt, digest_size=NAME_BYTES, person=b"v4serve-chain").digest()


def block_names(packed: bytes, salt: bytes, parent: bytes | None = None) -> list[bytes]:
    """Returns the names of the complete blocks of a packed prompt; a remainder of fewer than 256 ids has no name.

    `parent` continues an existing chain: the ids then start right after that block.
    """
    size = BLOCK_TOKENS * _ID_BYTES
    name = chain_root(salt) if parent is None else parent
    view = memoryview(packed)
    names = []
    for start in range(0, len(packed) - size + 1, size):
        name = hashlib.blake2b(view[start : start + size], digest_size=NAME_BYTES, key=name).digest()
        names.append(name)
    return names


def hit_limit(tokens: int) -> int:
    """The longest usable prefix of a prompt in tokens. At least one token must be computed to obtain logits."""
    return max(0, (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
