"""What a release's users and images rely on, as text: command lines, the policy file, what a V4Deployment may say.

    python -m tests.released.record > tests/released/VERSION.yaml

is run when that version is released, and again for one that is not released yet.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import typer
import yaml

from tests.operator.schema import SCHEMA
from v4_cli.main import app
from v4_core.kubernetes import KIND
from v4_router.policy import Policy

# Started in containers, by the chart or by the operator.
COMMANDS = ("operator", "router", "prefill", "decode", "fetch")
_LIMITS = (
    *("type", "enum", "minimum", "maximum", "minLength", "maxLength", "maxItems", "pattern", "required"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),  # what may not be there twice
)

Json = Mapping[str, Any]


def flags(command: str) -> list[str]:
    """Flags of a sub-command."""
    group = typer.main.get_command(app)
    parameters = group.commands[command].params  # type: ignore[attr-defined]
    return sorted(flag for parameter in parameters for flag in parameter.opts)


def policy_keys() -> list[str]:
    """Keys of the policy file."""
    return sorted(field.name for field in dataclasses.fields(Policy))


def limits(schema: Json, path: str = KIND) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each field of a schema, by its path."""
    yield path, {name: schema[name] for name in _LIMITS if name in schema}
    for name, child in schema.get("properties", {}).items():
        yield from limits(child, f"{path}.{name}")
    if "items" in schema:
        yield from limits(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from limits(schema["additionalProperties"], f"{path}.*")


def record() -> dict[str, Any]:
    """Of the code as it is."""
    return {
        "flags": {command: flags(command) for command in COMMANDS},
        "policy": policy_keys(),
        "schema": dict(limits(SCHEMA)),
    }


if __name__ == "__main__":
    plain = json.loads(json.dumps(record()))  # what stands in two places is written twice
    yaml.safe_dump(plain, sys.stdout, default_flow_style=None, width=120, sort_keys=True)
