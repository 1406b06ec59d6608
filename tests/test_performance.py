"""docs/performance.md says of each load what is aimed at for it, and where that is not met."""

import re
from pathlib import Path

import bench.router

DOCUMENT = Path(__file__).parents[1] / "docs/performance.md"


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    text = DOCUMENT.read_text("utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    table = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in table[2:]]


def number(cell: str) -> float | None:
    """The first number of a cell."""
    found = re.search(r"[\d,.]*\d", cell)
    return float(found[0].replace(",", "")) if found else None


def test_the_routers_aims_stand_beside_their_loads() -> None:
    assert {load: number(aim) for load, _, aim in rows("Router")} == bench.router.TARGETS


def test_an_aim_of_the_router_that_is_not_met_is_said_to_be() -> None:
    for load, measured, aim in rows("Router"):
        missed = (number(measured) or 0) < (number(aim) or 0)
        assert ("not met" in aim) == missed, load
