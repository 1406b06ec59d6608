"""YAML that people write."""

import pytest
import yaml

from v4_core.documents import RepeatedKey, parse_yaml


def test_plain_data() -> None:
    assert parse_yaml("a: 1\nb: [x, 2.5, null]\nc: {a: 2}\n") == {"a": 1, "b": ["x", 2.5, None], "c": {"a": 2}}
    assert parse_yaml("") is None
    assert parse_yaml("base: &b {x: 1}\nmore: {<<: *b, x: 2}") == {"base": {"x": 1}, "more": {"x": 2}}


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "x: {a: 1, a: 1}", "'a': 1\na: 2", "- {1: a, 1: b}"])
def test_a_key_that_stands_twice(text: str) -> None:
    with pytest.raises(RepeatedKey, match="occurs twice"):
        parse_yaml(text)


@pytest.mark.parametrize(
    "text",
    ["[", "!!python/object:os.system x", "2001-99-99: a", "a: 0x_", "a: !!int z", "!!timestamp z: a", "[" * 5000, "\0"],
)
def test_all_that_is_wrong_is_one_kind_of_error(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        parse_yaml(text)
