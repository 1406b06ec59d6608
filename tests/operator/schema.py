"""Reads the schema of the custom resource definition."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CRD_FILE = Path(__file__).parents[2] / "charts/v4serve/files/crd.yaml"
CRD: dict[str, Any] = yaml.safe_load(CRD_FILE.read_text())
VERSION: dict[str, Any] = CRD["spec"]["versions"][0]
SCHEMA: dict[str, Any] = VERSION["schema"]["openAPIV3Schema"]
SPEC: dict[str, Any] = SCHEMA["properties"]["spec"]
STATUS: dict[str, Any] = SCHEMA["properties"]["status"]

Path_ = tuple[str, ...]


def fields(schema: dict[str, Any], path: Path_ = ()) -> Iterator[tuple[Path_, dict[str, Any]]]:
    """Every named field below a schema; `[]` stands for the items of a list."""
    for name, child in schema.get("properties", {}).items():
        yield (*path, name), child
        yield from fields(child, (*path, name))
    if "items" in schema:
        yield from fields(schema["items"], (*path, "[]"))


def defaulted(schema: dict[str, Any], value: Any) -> Any:
    """`value` with the schema's defaults, as the API server fills them in."""
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for name, child in schema.get("properties", {}).items():
        if name not in result and "default" in child:
            result[name] = child["default"]
        if name in result:
            result[name] = defaulted(child, result[name])
    return result
