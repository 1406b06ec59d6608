"""Generates a chart's values.schema.json and the table of values in its README from the comments in values.yaml.

Comments directly above a key belong to the key. `# -- TEXT` documents a setting, whose type is that of its default; a
key without this comment must be a group of further keys. `# @schema {YAML}` adds JSON schema keywords and is required
for empty maps and lists, since an empty default does not show the type of its items. Independent of templates and Helm.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "v4serve"
_BEGIN, _END = "<!-- values: made by `make chart` -->\n", "<!-- end of values -->\n"
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


class ValuesError(Exception):
    """values.yaml is invalid; the message names the key."""


@dataclass(frozen=True)
class Value:
    """One key of values.yaml: a documented setting, or a group of further keys."""

    path: tuple[str, ...]
    default: Any
    text: str  # description of a setting; empty for a group
    keywords: dict[str, Any]  # additional JSON schema keywords
    children: list["Value"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name as written after `--set`."""
        return ".".join(self.path)

    def settings(self) -> Iterator["Value"]:
        """The documented settings in this subtree, in the order of the file."""
        if self.text:
            yield self
        for child in self.children:
            yield from child.settings()

    def schema(self) -> dict[str, Any]:
        """The JSON schema of this key's value."""
        if self.text:
            return {
                "description": self.text,
                "type": _TYPES[type(self.default)],
                "default": self.default,
            } | self.keywords
        properties = {child.path[-1]: child.schema() for child in self.children}
        return {"type": "object", "properties": properties, "additionalProperties": False} | self.keywords


def read(text: str) -> Value:
    """Parse a values.yaml. Raises ValuesError if it is invalid."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise ValuesError("values.yaml must be a mapping")
    defaults = yaml.safe_load(text)
    return Value((), defaults, "", {}, _children(root, defaults, (), text.splitlines()))


def _children(node: yaml.MappingNode, defaults: Any, above: tuple[str, ...], lines: list[str]) -> list[Value]:
    found = []
    for key, value in node.value:
        path, default = (*above, key.value), defaults[key.value]
        text, keywords = _comments(lines, key.start_mark.line, ".".join(path))
        children = []
        if not text:
            if not isinstance(value, yaml.MappingNode) or not value.value:
                raise ValuesError(f"{'.'.join(path)}: say in a comment `# -- TEXT` what the setting does")
            children = _children(value, default, path, lines)
        elif default in ({}, []) and keywords is None:
            raise ValuesError(f"{'.'.join(path)}: say in a comment `# @schema {{...}}` which items are valid")
        elif type(default) not in _TYPES:
            raise ValuesError(f"{'.'.join(path)}: a default must say its type, so it cannot be null")
        found.append(Value(path, default, text, keywords or {}, children))
    return found


def _comments(lines: list[str], line: int, name: str) -> tuple[str, dict[str, Any] | None]:
    """Return the text and the schema keywords from the comments directly above a line."""
    text, keywords = "", None
    for comment in _comment_block(lines, line):
        if comment.startswith("-- "):
            text = comment.removeprefix("-- ")
        elif comment.startswith("@schema "):
            keywords = yaml.safe_load(comment.removeprefix("@schema "))
            if not isinstance(keywords, dict):
                raise ValuesError(f"{name}: @schema needs a mapping, such as {{minimum: 1}}")
    return text, keywords


def _comment_block(lines: list[str], line: int) -> Iterator[str]:
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        yield lines[line].lstrip().removeprefix("#").strip()


def schema(values: Value) -> str:
    """The content of values.schema.json."""
    head = {"$schema": "http://json-schema.org/draft-07/schema#"}
    return json.dumps(head | values.schema(), indent=2, ensure_ascii=False) + "\n"


def readme(values: Value, before: str) -> str:
    """README.md with the current table. Raises ValuesError if `before` lacks the markers around the table."""
    head, begin, rest = before.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not begin or not end:
        raise ValuesError(
            f"README.md lacks the lines {_BEGIN.strip()} and {_END.strip()}, between which the table is written"
        )
    rows = [f"| `{one.name}` | `{json.dumps(one.default)}` | {one.text} |\n" for one in values.settings()]
    return "".join([head, begin, "| value | default | meaning |\n|---|---|---|\n", *rows, end, tail])


def generated(chart: Path) -> dict[Path, str]:
    """The content of every generated file, by path. Raises ValuesError."""
    values = read((chart / "values.yaml").read_text(encoding="utf-8"))
    page = chart / "README.md"
    return {
        chart / "values.schema.json": schema(values),
        page: readme(values, page.read_text(encoding="utf-8")),
    }


def main() -> int:
    """Write the generated files and return the exit code."""
    try:
        for path, content in generated(CHART).items():
            path.write_text(content, encoding="utf-8")
    except ValuesError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
