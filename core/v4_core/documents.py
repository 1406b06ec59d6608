"""YAML that people write, as plain data. Knows no setting and opens no file."""

from typing import Any

import yaml
from yaml.constructor import ConstructorError


class RepeatedKey(ConstructorError):
    """A mapping names a key twice. YAML forbids it, and its parser would silently keep the last one."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise RepeatedKey("in a mapping", node.start_mark, f"{key.value!r} stands twice", key.start_mark)
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> object:
    """The document in `text`, None if it is empty. Raises yaml.YAMLError, RepeatedKey among them, on all else."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    except (ValueError, AttributeError) as error:  # from PyYAML's readers of dates and numbers, as for 2001-99-99
        raise yaml.YAMLError(f"a value cannot be read: {error}") from None
