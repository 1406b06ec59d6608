"""The component token: the secret that the routers and workers of a deployment share, read from a file.

Knows the file and the metadata of gRPC calls that carry the token. Knows no server and no channel.
"""

import hmac
from pathlib import Path

from v4_core.errors import ConfigError
from v4_core.reloading import Reloaded

METADATA_KEY = "authorization"
_SCHEME = "Bearer "


class TokenFile:
    """The token in a file. It is reloaded when the file changes, and stays valid if the file becomes unreadable."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file cannot be read or does not hold a token."""
        self._file = Reloaded(path, _read)

    def current(self) -> str:
        """The present token."""
        self._file.reload_if_changed()
        return self._file.current

    def accepts(self, shown: str) -> bool:
        """Whether the value of a call's `authorization` has this token. The comparison takes constant time."""
        return hmac.compare_digest(shown.encode(), (_SCHEME + self.current()).encode())


def metadata(token: TokenFile | None) -> tuple[tuple[str, str], ...]:
    """The metadata of a call to a worker; empty without a token."""
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
