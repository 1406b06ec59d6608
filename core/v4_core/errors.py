"""The errors of core, and the root of every other package's tree.

    V4Error
    ├── ConfigError          a file, flag or checkpoint that cannot be used; the message says what to change
    │   └── GeometryError    a cache layout that this model and these formats cannot have
    └── RequestError         a request that can never be served as asked (HTTP 400, gRPC INVALID_ARGUMENT)

Messages are for users: they say what was wrong and what to do next.
"""

import difflib
from collections.abc import Iterable


class V4Error(Exception):
    """Root of all errors that v4serve raises on purpose."""


class ConfigError(V4Error):
    """A setting or checkpoint that cannot be used."""


class GeometryError(ConfigError):
    """A combination of model and storage formats without a layout."""


class RequestError(V4Error):
    """A request that can never be served as asked."""


def unknown_key_message(what: str, key: str, known: Iterable[str]) -> str:
    """`unknown <what> 'key'`, with the nearest known key, or all of them where none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return f"unknown {what} {key!r}: {hint}"
