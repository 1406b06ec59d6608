"""Prints the results of commands: as a table for people, or as JSON for programs."""

import json
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table


def print_json(facts: object) -> None:
    """Prints one JSON document on stdout."""
    print(json.dumps(facts, indent=2))


def print_facts(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Prints a table of names and values on stdout."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def print_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Prints a table on stdout with a column for each key of the rows."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)


def binary_size(nbytes: int) -> str:
    """Formats a number of bytes, also in the largest binary unit of which there is at least one."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{nbytes:,} B" + ("" if unit == "B" else f" ({value:.4f} {unit})")
