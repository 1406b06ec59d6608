"""Flags of the commands: those that several commands share, and those that are generated from settings.

A flag that is not given is None; then the file given with --config or the default of the setting applies.
"""

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import typer

from v4_cli.model import model_folder
from v4_core.settings import Key, keys, load

T = TypeVar("T")

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="YAML file of settings, also of those without a flag; flags override it."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--model",
        parser=model_folder,
        metavar="<path>",
        help="Folder of a checkpoint. (default: the model shipped with v4serve)",
    ),
]
CheckpointOrDemo = Annotated[
    Path | None,
    typer.Option(
        "--model",
        parser=model_folder,
        metavar="<path|demo>",
        help="Folder of a checkpoint; demo: the model shipped with v4serve.",
    ),
]
Parse = Callable[[Any], object]  # turns the value of a flag into the value of its setting


def command(
    settings: type[T],
    run: Callable[..., None],
    *,
    flags: Mapping[str, Any] | None = None,
    parse: Mapping[str, Parse] | None = None,
) -> Callable[..., None]:
    """Returns a command with one flag for each setting, and --config.

    The command loads the settings and calls `run` with them; its help is the docstring of `run`. `flags` replaces the
    annotations of flags, by key, or adds flags that are no settings, whose values `run` gets by name. `parse` converts
    the values of flags, by key.
    """
    names = {key.name for key in keys(settings)}
    annotations = {key.name: _annotation(key) for key in keys(settings) if key.flag} | dict(flags or {})
    annotations["config"] = ConfigFile

    def call(**given: Any) -> None:
        file = given.pop("config")
        for name, convert in (parse or {}).items():
            given[name] = convert(given[name])
        settled = {name: None if value == [] else value for name, value in given.items() if name in names}
        extra = {name: value for name, value in given.items() if name not in names}
        run(load(settings, file, settled), **extra)

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_absent(annotation), annotation=annotation)
        for name, annotation in annotations.items()
    ]
    call.__name__, call.__doc__, call.__annotations__ = run.__name__.lstrip("_"), run.__doc__, annotations
    vars(call)["__signature__"] = inspect.Signature(parameters)
    return call


def _absent(annotation: Any) -> bool | None:
    """The value of a flag that is not given."""
    return False if get_args(annotation)[0] is bool else None


def _annotation(key: Key) -> Any:
    """The parameter of a flag as typer reads it."""
    return Annotated[_type(key.hint), typer.Option(key.flag, help=f"{key.setting.text}{_default(key)}")]


def _type(hint: Any) -> Any:
    """The type of a flag's value: lists are repeated flags, and a value of several types is text."""
    if get_origin(hint) is tuple:
        return list[str] | None
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not types.NoneType]
        return (kinds[0] if len(kinds) == 1 else str) | None
    return hint | None


def _default(key: Key) -> str:
    text = default_text(key)
    return f" (default: {text})" if text not in ("", "required", "false") else ""


def default_text(key: Key) -> str:
    """The default of a setting for users: `required` if there is none, empty for an empty text or group."""
    default = key.default
    if default is dataclasses.MISSING:
        return "required"
    if default is None:
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int | float):
        return f"{default:.12g}"
    return str(default) if isinstance(default, str) else ""
