"""docs/performance.md names the target of each load, and says which targets are not met."""

import re
from pathlib import Path

import bench.router

DOCUMENT = Path(__file__).parents[1] / "docs/performance.md"


def rows(section: str) -> list[list[str]]:
    """Return the cells of a section's table, without the header."""
    text = DOCUMENT.read_text("utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    table = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in table[2:]]


def number(cell: str) -> float | None:
    """Return the first number in a cell."""
    found = re.search(r"[\d,.]*\d", cell)
    return float(found[0].replace(",", "")) if found else None


def test_the_routers_targets_are_documented() -> None:
    assert {load: number(aim) for load, _, aim in rows("Router")} == bench.router.TARGETS


def test_targets_of_the_router_that_are_not_met_are_marked() -> None:
    for load, measured, aim in rows("Router"):
        missed = (number(measured) or 0) < (number(aim) or 0)
        assert ("not met" in aim) == missed, load
