"""docs/complaints.md names tests that exist."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / "docs" / "complaints.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if "::" in line]
_FUNCTION = re.compile(r"^(?:async )?def (\w+)\(", re.MULTILINE)
_NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def functions(file: str) -> set[str]:
    """Return the names of the functions of a test module."""
    return set(_FUNCTION.findall((TESTS / file).read_text(encoding="utf-8")))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].split(",")[0])
def test_each_is_held_by_tests_that_exist(row: list[str]) -> None:
    reported, symptom, holds = row
    assert reported
    assert symptom
    assert _NAMED.sub("", holds).strip(", ") == "", "the column may only name tests, each as `file.py::test_name`"
    for file, name in _NAMED.findall(holds):
        assert name in functions(file), f"{file}::{name}"


def test_none_is_there_twice() -> None:
    reported = [one for row in ROWS for one in row[0].split(", ")]
    assert len(reported) == len(set(reported))
    assert len(reported) > 50
