"""The component token: the one secret that router and workers of a deployment share, read from a file.

Knows the file and how a gRPC call shows the token; knows no server and no channel.
"""

import hmac
from pathlib import Path

from v4_core.errors import ConfigError
from v4_core.reloading import Reloaded

METADATA_KEY = "authorization"
_SCHEME = "Bearer "


class TokenFile:
    """The token in a file, read again when the file changes; one that can no longer be read stays valid."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file cannot be read or holds no token."""
        self._file = Reloaded(path, _read)

    def current(self) -> str:
        """The token now."""
        self._file.look()
        return self._file.current

    def accepts(self, shown: str) -> bool:
        """Whether the value of a call's `authorization` shows this token. Takes equally long for all wrong ones."""
        return hmac.compare_digest(shown.encode(), (_SCHEME + self.current()).encode())


def metadata(token: TokenFile | None) -> tuple[tuple[str, str], ...]:
    """What a call to a worker carries; nothing where no token is in use."""
    return () if token is None else ((METADATA_KEY, _SCHEME + token.current()),)


def _read(path: Path) -> str:
    """Raises ConfigError."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token_file {path} cannot be read: {error}") from None
    if not token:
        raise ConfigError(f"token_file {path} is empty: write a random token into it, such as `openssl rand -hex 32`")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"token_file {path} holds more than one line or word: a token is one word of printable ASCII")
    return token
