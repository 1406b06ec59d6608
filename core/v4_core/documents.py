"""Parses YAML written by users into plain data. Knows no setting and opens no file."""

from typing import Any

import yaml
from yaml.constructor import ConstructorError


class RepeatedKey(ConstructorError):
    """A mapping has a key twice. YAML forbids that, but PyYAML would silently keep the last value."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise RepeatedKey(
                        "in a mapping", node.start_mark, f"the key {key.value!r} occurs twice", key.start_mark
                    )
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> object:
    """Parses `text`; None if it is empty. Raises yaml.YAMLError, of which RepeatedKey is one, if it is not valid."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    # PyYAML's constructors of dates and numbers raise these, for example for 2001-99-99.
    except (ValueError, AttributeError) as error:
        raise yaml.YAMLError(f"a value cannot be read: {error}") from None
