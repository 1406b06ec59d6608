"""The errors of core, and the root of every other package's tree.

    V4Error
    ├── ConfigError          a file, flag or checkpoint is unusable; the message says what to change
    │   └── GeometryError    this model has no cache layout in these storage formats
    └── RequestError         the request can never be served (HTTP 400, gRPC INVALID_ARGUMENT)

Messages are for users: they say what is wrong and what to do.
"""

import difflib
from collections.abc import Iterable


class V4Error(Exception):
    """The base class of all errors that v4serve raises deliberately."""


class ConfigError(V4Error):
    """A setting or checkpoint is unusable."""


class GeometryError(ConfigError):
    """The model has no cache layout in these storage formats."""


class RequestError(V4Error):
    """The request can never be served."""


def unknown_key_message(what: str, key: str, known: Iterable[str]) -> str:
    """Returns `unknown <what> 'key'` with the most similar known key, or with all known keys if none is similar."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return f"unknown {what} {key!r}: {hint}"
