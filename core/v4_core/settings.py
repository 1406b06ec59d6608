"""Builds the frozen settings object of a process from a YAML file and the flags that override it.

The dataclass is the schema: its field names are the keys, its annotations the types, its `__post_init__` the rules
between fields. Known annotations are bool, int, float, str, Path, `Bytes`, Literal, unions, `tuple[X, ...]`, nested
dataclasses, and Mapping for settings that are passed on without validation. `Setting` adds the text from which flags
and docs/settings.md are generated; the keys of a nested dataclass that is marked `FLAT` are keys of its parent. Knows
no setting by name, and reads no environment.

pydantic could do this too. But workers and the operator do not need it otherwise, and its errors would have to be
translated into the one line that users see.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
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
    """Parses a size such as `141GB` (10^9), `9.62GiB` (2^30) or a plain number of bytes. Raises ConfigError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ConfigError(
            f"{value!r} is not a size: write bytes, or a number with KB, MB, GB, TB, KiB, MiB, GiB or TiB"
        )
    return round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


# A number of bytes that a user may write as "141GB".
Bytes = Annotated[int, parse_bytes]


class _Mark:
    """A mark in the annotation of a field."""


FLAT = _Mark()  # a nested dataclass whose keys stand among the keys of the dataclass that holds it
INTERNAL = _Mark()  # a field that the program sets, not users


@dataclasses.dataclass(frozen=True)
class Setting:
    """What users read about a setting, in `--help` and in docs/settings.md."""

    text: str  # one sentence, or several
    flag: str | None = ""  # name of the flag; empty = made of the key: max_sequences -> --max-sequences; None = no flag


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a settings file."""

    name: str
    hint: Any  # the type, without Setting
    setting: Setting
    default: Any  # dataclasses.MISSING = required

    @property
    def flag(self) -> str | None:
        """The name of the setting's flag; None if it has none."""
        return f"--{self.name.replace('_', '-')}" if self.setting.flag == "" else self.setting.flag


def keys(cls: type[Any]) -> Iterator[Key]:
    """Yields the keys of a settings file for `cls`, in order. Fields without a Setting are not for users."""
    for field, hint in _fields(cls):
        if _has_mark(hint, FLAT):
            yield from keys(get_args(hint)[0])
            continue
        setting = next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Setting)), None)
        if setting is not None:
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            yield Key(field.name, get_args(hint)[0], setting, default)


def _fields(cls: type[Any]) -> list[tuple["dataclasses.Field[Any]", Any]]:
    """The fields that users may set, with their types."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [(field, hints[field.name]) for field in dataclasses.fields(cls) if field.init]
    return [(field, hint) for field, hint in fields if not _has_mark(hint, INTERNAL)]


def _has_mark(hint: Any, mark: _Mark) -> bool:
    return mark in getattr(hint, "__metadata__", ())


def load(cls: type[T], file: Path | None, overrides: Mapping[str, object]) -> T:
    """Builds `cls` from the keys of a YAML `file` and from `overrides`, which win; an override of None is not given.

    Relative paths start at the working directory. Raises ConfigError that names the key if a value cannot be used.
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
        raise ConfigError(f"is not YAML: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"must hold `key: value` lines, not a {type(data).__name__}")
    return data


def _build(cls: type[T], data: Mapping[str, object], prefix: str) -> T:
    """Builds `cls` from a mapping whose keys have this prefix in messages."""
    assert dataclasses.is_dataclass(cls)
    names = _names(cls)
    for key in data:
        if key not in names:
            raise ConfigError(unknown_key_message("setting", f"{prefix}{key}", (prefix + name for name in names)))
    return _assemble(cls, data, prefix)


def _names(cls: type[Any]) -> list[str]:
    """The keys that `cls` takes, with those of its flat groups."""
    names = []
    for field, hint in _fields(cls):
        names += _names(get_args(hint)[0]) if _has_mark(hint, FLAT) else [field.name]
    return names


def _assemble(cls: type[T], data: Mapping[str, object], prefix: str) -> T:
    """Builds `cls` from those keys of `data` that are its own or its flat groups'."""
    given: dict[str, object] = {}
    missing = []
    for field, hint in _fields(cls):
        if _has_mark(hint, FLAT):
            given[field.name] = _assemble(get_args(hint)[0], data, prefix)
        elif field.name in data:
            given[field.name] = _convert(hint, data[field.name], prefix + field.name)
        elif _required(field):
            missing.append(prefix + field.name)
    if missing:
        raise ConfigError(f"missing: {', '.join(missing)}; give each as a flag or in the --config file")
    return cls(**given)


def _required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(hint: Any, value: object, key: str) -> object:
    """Converts `value` to the type `hint`. Raises ConfigError that names `key`."""
    origin = get_origin(hint)
    if origin is Annotated:
        parse = next((one for one in hint.__metadata__ if not isinstance(one, Setting)), None)
        if parse is None:
            return _convert(get_args(hint)[0], value, key)
        try:
            return parse(value)
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
    """Converts to the first type that accepts `value`. If none does, the error is that of the last type."""
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
    with suppress(OverflowError):  # an integer too large for a float
        if math.isfinite(number := float(value)):
            return number
    raise _wrong(key, "a finite number", value)


def _wrong(key: str, wanted: str, value: object) -> ConfigError:
    return ConfigError(f"{key} must be {wanted}, not {value!r}")
