"""API keys: who may ask, and as which tenant. Knows no HTTP. No key is ever part of a message.

Keys are compared by their digests under a secret of this process: how long a comparison takes says nothing of a key,
since nobody outside knows what is compared.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import yaml

from v4_core.documents import RepeatedKey, parse_yaml
from v4_core.errors import ConfigError


class Keys:
    """The tenant of each key."""

    def __init__(self, tenants: Mapping[str, str], written: datetime | None = None) -> None:
        """`written`: when the file with them was."""
        self.written = written
        self._secret = secrets.token_bytes(32)
        self._tenants = {self._digest(key.encode()): tenant for key, tenant in tenants.items()}

    def tenant(self, shown: bytes) -> str | None:
        """Whose key this is; None if nobody's."""
        return self._tenants.get(self._digest(shown))

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=32, key=self._secret).digest()


class KeyRing:
    """The keys of a file that changes. A key that vanished from it is good for a while: routers see a change at
    different times, and until the last of them did, the former key is the one that all of them take.
    """

    def __init__(
        self, keys: Keys, overlap_seconds: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`overlap_seconds` as it is meant now, also for keys that vanished before; 0 = none is good any more."""
        self._overlap_seconds, self._clock = overlap_seconds, clock
        self._current = keys
        self._former: list[tuple[Keys, float]] = []  # and when it was replaced; the newest first

    @property
    def written(self) -> datetime | None:
        """When the file got the keys that it has now: whatever was changed before that time counts."""
        return self._current.written

    def replace(self, keys: Keys) -> None:
        """The file has these keys now."""
        self._former = [(self._current, self._clock()), *self._kept()]
        self._current = keys

    def tenant(self, shown: bytes) -> str | None:
        """Whose key this is; None if nobody's."""
        tenant = self._current.tenant(shown)
        if tenant is None and self._former:
            self._former = self._kept()
            tenant = next(filter(None, (keys.tenant(shown) for keys, _ in self._former)), None)
        return tenant

    def _kept(self) -> list[tuple[Keys, float]]:
        oldest = self._clock() - self._overlap_seconds()
        return [(keys, at) for keys, at in self._former if at > oldest]


def read_keys(file: Path) -> Keys:
    """Keys of a YAML file, `key: tenant` a line. Raises ConfigError, which names entries by their place only."""
    try:
        written = datetime.fromtimestamp(file.stat().st_mtime, UTC)  # first: a change meanwhile makes it too early
        data = parse_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_keys {file} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = f"line {mark.line + 1}" if mark else "its content"
        what = "repeats a key: give each one tenant" if isinstance(error, RepeatedKey) else "is no YAML"
        raise ConfigError(f"api_keys {file}: {where} {what}") from None  # its own message quotes the line
    if not isinstance(data, dict) or not data:
        raise ConfigError(f"api_keys {file} must hold at least one line `key: tenant`")
    for number, (key, tenant) in enumerate(data.items(), 1):
        _check(f"api_keys {file}: entry {number}", key, tenant)
    return Keys(data, written)


def _check(where: str, key: object, tenant: object) -> None:
    if not isinstance(key, str):
        raise ConfigError(f"{where}: the key is no text: put it into quotes")
    if not key or not all("!" <= c <= "~" for c in key):
        raise ConfigError(f"{where}: a key is one word of printable ASCII, such as `openssl rand -hex 32` makes")
    if not isinstance(tenant, str) or not tenant or not tenant.isprintable():
        raise ConfigError(f"{where}: the tenant must be a name; put numbers into quotes")
