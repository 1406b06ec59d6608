"""API keys: who may ask, and as which tenant. Knows no HTTP. No key is ever part of a message.

Keys are compared by their digests under a secret of this process: how long a comparison takes says nothing of a key,
since nobody outside knows what is compared.
"""

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path

import yaml

from v4_core.documents import RepeatedKey, parse_yaml
from v4_core.errors import ConfigError


class Keys:
    """The tenant of each key."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        self._secret = secrets.token_bytes(32)
        self._tenants = {self._digest(key.encode()): tenant for key, tenant in tenants.items()}

    def tenant(self, shown: bytes) -> str | None:
        """Whose key this is; None if nobody's."""
        return self._tenants.get(self._digest(shown))

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=32, key=self._secret).digest()


def read_keys(file: Path) -> Keys:
    """Keys of a YAML file, `key: tenant` a line. Raises ConfigError, which names entries by their place only."""
    try:
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
    return Keys(data)


def _check(where: str, key: object, tenant: object) -> None:
    if not isinstance(key, str):
        raise ConfigError(f"{where}: the key is no text: put it into quotes")
    if not key or not all("!" <= c <= "~" for c in key):
        raise ConfigError(f"{where}: a key is one word of printable ASCII, such as `openssl rand -hex 32` makes")
    if not isinstance(tenant, str) or not tenant or not tenant.isprintable():
        raise ConfigError(f"{where}: the tenant must be a name; put numbers into quotes")
