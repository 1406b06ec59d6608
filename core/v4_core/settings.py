"""Builds a process's one frozen settings object from a YAML file and the flags that override it.

The dataclass is the schema: its field names are the keys, its annotations the types, its `__post_init__` the
rules between fields. Known annotations are bool, int, float, str, Path, `Bytes`, Literal, unions,
`tuple[X, ...]`, nested dataclasses, and Mapping for settings that are handed on unread. Knows no setting by name,
and reads no environment.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import yaml

from v4_core.documents import parse_yaml
from v4_core.errors import ConfigError, unknown_key_message

T = TypeVar("T")

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)}
_UNITS |= {f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGT", start=1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", re.ASCII)


def parse_bytes(value: str | int) -> int:
    """Bytes of a size such as `141GB` (10^9), `9.62GiB` (2^30) or a plain number. Raises ConfigError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ConfigError(f"{value!r} is no size: write bytes, or a number with KB, MB, GB, TB, KiB, MiB, GiB or TiB")
    return round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


# A number of bytes that a user may write as "141GB".
Bytes = Annotated[int, parse_bytes]


def load(cls: type[T], file: Path | None, overrides: Mapping[str, object]) -> T:
    """Build `cls` from the keys of a YAML `file`, then `overrides`; an override of None was not given.

    Relative paths start at the working directory. Raises ConfigError naming the key that cannot be used.
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        return _build(cls, {**(_read(file) if file else {}), **given}, "")
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}" if file else str(error)) from None


def _read(file: Path) -> Mapping[str, object]:
    try:
        data = parse_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"is no YAML: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"must hold `key: value` lines, not a {type(data).__name__}")
    return data


def _build(cls: type[T], data: Mapping[str, object], prefix: str) -> T:
    """`cls` from a mapping whose keys stand below `prefix`."""
    assert dataclasses.is_dataclass(cls)
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for key in data:
        if key not in fields:
            raise ConfigError(unknown_key_message("setting", f"{prefix}{key}", (prefix + name for name in fields)))
    missing = [prefix + name for name, field in fields.items() if name not in data and _required(field)]
    if missing:
        raise ConfigError(f"missing: {', '.join(missing)}; give each as a flag or in the --config file")
    return cls(**{key: _convert(hints[key], value, prefix + key) for key, value in data.items()})


def _required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(hint: Any, value: object, key: str) -> object:
    """`value` as `hint` wants it. Raises ConfigError naming `key`."""
    origin = get_origin(hint)
    if origin is Annotated:
        try:
            return get_args(hint)[1](value)
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from None
    if origin in (typing.Union, types.UnionType):
        return _union(get_args(hint), value, key)
    if origin is Literal:
        return _literal(get_args(hint), value, key)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise _wrong(key, "a group of settings", value)
        return dict(value)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _wrong(key, "a list", value)
        return tuple(_convert(get_args(hint)[0], item, f"{key}[{i}]") for i, item in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return _nested(hint, value, key)
    return _scalar(hint, value, key)


def _union(arms: tuple[Any, ...], value: object, key: str) -> object:
    """As the first arm that takes `value`; what the last one says where none does."""
    if value is None and types.NoneType in arms:
        return None
    *others, last = (arm for arm in arms if arm is not types.NoneType)
    for arm in others:
        with suppress(ConfigError):
            return _convert(arm, value, key)
    return _convert(last, value, key)


def _literal(allowed: tuple[object, ...], value: object, key: str) -> object:
    if value not in allowed:
        raise ConfigError(f"{key} is {value!r}; choose one of {', '.join(map(str, allowed))}")
    return value


def _nested(hint: Any, value: object, key: str) -> object:
    if isinstance(value, hint):
        return value
    if not isinstance(value, Mapping):
        raise _wrong(key, "a group of settings", value)
    return _build(hint, value, f"{key}.")


def _scalar(hint: Any, value: object, key: str) -> object:
    if hint is Path and isinstance(value, str | Path):
        return Path(value).expanduser()
    if hint is float and type(value) in (int, float):
        return _finite(value, key)
    if hint in (bool, int, str) and type(value) is hint:
        return value
    names = {Path: "a path", bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if hint not in names:
        raise TypeError(f"settings cannot hold a {hint!r} ({key})")
    raise _wrong(key, names[hint], value)


def _finite(value: Any, key: str) -> float:
    with suppress(OverflowError):  # a whole number beyond all floats
        if math.isfinite(number := float(value)):
            return number
    raise _wrong(key, "a finite number", value)


def _wrong(key: str, wanted: str, value: object) -> ConfigError:
    return ConfigError(f"{key} must be {wanted}, not {value!r}")
