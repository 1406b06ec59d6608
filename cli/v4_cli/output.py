"""What a command prints: one table for people, or the same facts as JSON for programs."""

import json
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table


def print_json(facts: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(facts, indent=2))


def print_facts(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """A two-column table on stdout."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def print_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """A table on stdout with a column for each key."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)


def binary_size(nbytes: int) -> str:
    """Bytes and the same in the largest binary unit that leaves a number of at least 1."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{nbytes:,} B" + ("" if unit == "B" else f" ({value:.4f} {unit})")
