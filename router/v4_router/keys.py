"""API keys and their tenants. Knows no HTTP. No message contains a key.

Keys are stored and compared as digests that are keyed with a secret of this process, so the time that a comparison
takes reveals nothing about a key.
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
    """The API keys of one version of the key file, each with its tenant."""

    def __init__(self, tenants: Mapping[str, str], written: datetime | None = None) -> None:
        """`tenants`: tenant by key. `written`: the file's modification time."""
        self.written = written
        self._secret = secrets.token_bytes(32)
        self._tenants = {self._digest(key.encode()): tenant for key, tenant in tenants.items()}

    def tenant(self, key: bytes) -> str | None:
        """Returns the tenant of a key, or None if the key is unknown."""
        return self._tenants.get(self._digest(key))

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=32, key=self._secret).digest()


class KeyRing:
    """The keys of a file that changes.

    A key that was removed from the file stays valid for a while: routers read a change at different times, and until
    the last of them has read it, the removed key is the only one that all of them accept.
    """

    def __init__(
        self, keys: Keys, overlap_seconds: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`overlap_seconds` returns how long a removed key stays valid; the present value applies to every such key."""
        self._overlap_seconds, self._clock = overlap_seconds, clock
        self._current = keys
        self._former: list[tuple[Keys, float]] = []  # earlier keys and when they were replaced, newest first

    @property
    def written(self) -> datetime | None:
        """Modification time of the file whose keys are used: every change made before it is in effect."""
        return self._current.written

    def replace(self, keys: Keys) -> None:
        """Uses the keys of a new version of the file."""
        self._former = [(self._current, self._clock()), *self._kept()]
        self._current = keys

    def tenant(self, key: bytes) -> str | None:
        """Returns the tenant of a valid key, or None if the key is not valid."""
        tenant = self._current.tenant(key)
        if tenant is None and self._former:
            self._former = self._kept()
            tenant = next(filter(None, (keys.tenant(key) for keys, _ in self._former)), None)
        return tenant

    def _kept(self) -> list[tuple[Keys, float]]:
        oldest = self._clock() - self._overlap_seconds()
        return [(keys, at) for keys, at in self._former if at > oldest]


def read_keys(file: Path) -> Keys:
    """Returns the keys of a YAML file with one `key: tenant` per line.

    Raises ConfigError, which names an entry by its position only.
    """
    try:
        # Taken before the content is read: if the file changes in between, the time is too early and never too late.
        written = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        data = parse_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_keys {file} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = f"line {mark.line + 1}" if mark else "its content"
        what = "repeats a key: give each key one tenant" if isinstance(error, RepeatedKey) else "is not valid YAML"
        raise ConfigError(f"api_keys {file}: {where} {what}") from None  # the YAML error would quote the line
    if not isinstance(data, dict) or not data:
        raise ConfigError(f"api_keys {file} must hold at least one line `key: tenant`")
    for number, (key, tenant) in enumerate(data.items(), 1):
        _check(f"api_keys {file}: entry {number}", key, tenant)
    return Keys(data, written)


def _check(where: str, key: object, tenant: object) -> None:
    if not isinstance(key, str):
        raise ConfigError(f"{where}: the key is not a string: put it in quotes")
    if not key or not all("!" <= c <= "~" for c in key):
        raise ConfigError(
            f"{where}: the key must be printable ASCII without spaces: make one with `openssl rand -hex 32`"
        )
    if not isinstance(tenant, str) or not tenant or not tenant.isprintable():
        raise ConfigError(f"{where}: the tenant must be a non-empty printable string: put a number in quotes")
