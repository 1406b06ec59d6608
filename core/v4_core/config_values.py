"""Reads typed values from a parsed `config.json`. Raises ConfigError for other types. Knows no field by name."""

import sys
from collections.abc import Collection, Mapping
from typing import Any

from v4_core.errors import ConfigError, unknown_key_message

Json = Mapping[str, Any]


def refuse_unknown(what: str, data: Json, known: Collection[str], named: Collection[str] = ()) -> None:
    """Raises ConfigError for a key that is not in `known`. The message suggests keys of `named`, or else of `known`."""
    for key in data:
        if key not in known:
            raise ConfigError(unknown_key_message(what, key, named or known))


def agreed(stated: Mapping[str, Any]) -> Any:
    """The value on which all given fields agree; None if no field has one. Raises ConfigError if two contradict."""
    given = [(name, found) for name, found in stated.items() if found is not None]
    for name, found in given[1:]:
        if found != given[0][1]:
            raise contradiction(*given[0], name, found)
    return given[0][1] if given else None


def contradiction(one: str, its: Any, other: str, others: Any) -> ConfigError:
    """The error for two fields that contradict each other."""
    return ConfigError(
        f"config.json contradicts itself: {one} is {its!r}, {other} is {others!r}; correct or remove one of them"
    )


def value(data: Json, key: str, default: Any = None) -> Any:
    """A field, or `default` if it is absent or null. Raises ConfigError if there is no default either."""
    found = data.get(key)
    if found is None and default is None:
        raise ConfigError(f"config.json lacks the field {key!r}")
    return default if found is None else found


def whole(data: Json, key: str, default: int | None = None) -> int:
    """An integer."""
    found = value(data, key, default)
    if not isinstance(found, int) or isinstance(found, bool):
        raise ConfigError(f"config.json has {key}={found!r}; it must be a whole number")
    return found


def real(data: Json, key: str, default: float | None = None) -> float:
    """A finite number. Python's JSON parser also accepts NaN, Infinity and integers of any length."""
    found = value(data, key, default)
    if not isinstance(found, int | float) or isinstance(found, bool):
        raise ConfigError(f"config.json has {key}={found!r}; it must be a number")
    if not abs(found) <= sys.float_info.max:
        raise ConfigError(f"config.json has a {key} that is not finite; it must be a number that a float can hold")
    return float(found)


def real_or_none(data: Json, key: str) -> float | None:
    """A number, or None if the field is absent or null."""
    return None if data.get(key) is None else real(data, key)


def token_ids(data: Json, key: str) -> tuple[int, ...]:
    """A token id or a list of token ids, as an ascending tuple without duplicates."""
    found = value(data, key)
    ids = found if isinstance(found, list) else [found]
    if not ids or not all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
        raise ConfigError(f"config.json has {key}={found!r}; it must be a whole number or a list of them")
    return tuple(sorted(set(ids)))


def for_layers(data: Json, key: str, layers: int) -> list[Any]:
    """A list with at least one item per layer."""
    found = value(data, key)
    if not isinstance(found, list) or len(found) < layers:
        raise ConfigError(f"{key} must list one item for each of the {layers} layers, not {found!r}")
    return found


def group(data: Json, key: str) -> Json:
    """An object; empty if the field is absent or null."""
    found = value(data, key, {})
    if not isinstance(found, dict):
        raise ConfigError(f"config.json has {key}={found!r}; it must be an object")
    return found
