import json

import pytest

from v4_cli.output import binary_size, print_facts, print_json, print_rows


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1,024 B (1.0000 KiB)"),
        (10_334_371_840, "10,334,371,840 B (9.6246 GiB)"),
        (2**60, "1,152,921,504,606,846,976 B (1048576.0000 TiB)"),
    ],
)
def test_binary_size(nbytes: int, text: str) -> None:
    assert binary_size(nbytes) == text


def test_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts("title", [("name", "value")])
    print_rows("rows", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}])
    out = capsys.readouterr().out
    assert all(text in out for text in ("title", "name", "value", "rows", "a", "4"))
    print_json({"x": [1, None]})
    assert json.loads(capsys.readouterr().out) == {"x": [1, None]}
