"""Draws the workers of a pool as the lines of a table, for `v4serve top`. Pure.

If the terminal is too narrow for all columns, the less important ones are left out, so that names stay legible. Text
from other machines is shown without markup and control characters.
"""

import re
from collections.abc import Sequence

from rich.text import Text

from v4_cli.figures import number, percent
from v4_router.facts import Worker

PARTS = (("used", "█", "blue"), ("checkpoint", "▓", "magenta"), ("cached", "▒", "cyan"), ("free", "·", "dim"))
WIDE = 80  # width in characters from which nothing is left out

_STATES = {"ready": "green", "down": "red"}  # color by state; yellow for all others
_NAME = 15  # least width of a name in characters, enough for most addresses
_BAR = 12  # width of the bar at 80 characters; the bar also gets half of any additional width
_SLOTS = "block slots"
_FIRST_LEFT_OUT = ("tails", "leases", _SLOTS, "queued", "wait", "run", "used")


def plain(text: str) -> str:
    """Replaces control characters."""
    return "".join(character if character.isprintable() else "?" for character in text)


def line(*parts: str | Text | tuple[str, str]) -> Text:
    """Returns a line that is cut off, not wrapped, if it is too long."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def table(workers: Sequence[Worker], width: int) -> list[Text]:
    """Returns a line of titles and a line for each worker."""
    bar = _BAR + max(0, width - WIDE) // 2
    figures = [_figures(worker, bar) for worker in workers]
    state = max(len("state"), *(len(plain(worker.state)) for worker in workers))
    widths = _widths(figures, width - 1 - state)
    name = max(_NAME, width - 1 - state - sum(1 + one for one in widths.values()))
    titles = [_cell(Text(title), size, title) for title, size in widths.items()]
    lines = [_line([_cell(Text("worker"), name), _cell(Text("state"), state), *titles])]
    lines[0].stylize("dim")
    for worker, known in zip(workers, figures, strict=True):
        shown = Text(plain(worker.state), _STATES.get(worker.state, "yellow"))
        cells = [_cell(known[title], size, title) for title, size in widths.items()]
        rest = cells if worker.state != "down" else [Text(_reason(worker), "red")]
        lines.append(_line([_cell(_end(plain(worker.name), name), name), _cell(shown, state), *rest]))
    return lines


def _widths(figures: Sequence[dict[str, Text]], width: int) -> dict[str, int]:
    """Returns the width by title of the columns for which there is room beside a name."""
    widths = {title: max(len(title), *(known[title].cell_len for known in figures)) for title in figures[0]}
    for title in _FIRST_LEFT_OUT:
        if _NAME + sum(1 + one for one in widths.values()) > width:
            del widths[title]
    return widths


def _line(cells: Sequence[Text]) -> Text:
    return line(Text(" ").join(cells))


def _cell(text: Text, width: int, title: str = "") -> Text:
    """Cuts and aligns a cell's text: figures to the right, everything else to the left."""
    text.truncate(width, overflow="ellipsis")
    text.align("left" if title in ("", _SLOTS) else "right", width)
    return text


def _end(name: str, width: int) -> Text:
    """Cuts a name that is too long at its beginning, since the names of pods differ at their ends."""
    return Text(name if len(name) <= width else f"…{name[1 - width :]}")


def _figures(worker: Worker, bar: int) -> dict[str, Text]:
    """Returns the cells of a worker by the title of their column."""
    return {
        _SLOTS: _bar(worker, bar),
        "used": Text(percent(worker.used / worker.slots if worker.slots else None)),
        "run": Text(number(worker.running)),
        "wait": Text(number(worker.waiting)),
        "queued": Text(number(worker.queued_tokens)),
        "tails": Text(f"{worker.tails_used}/{worker.tails}"),
        "leases": Text(number(worker.leases)),
    }


def _bar(worker: Worker, width: int) -> Text:
    """Draws the shares of block slots by content; a share greater than 0 gets at least one character."""
    bar, ends = Text(), 0
    total = 0
    for kind, sign, style in PARTS:
        total += getattr(worker, kind)
        end = round(width * total / worker.slots) if worker.slots else 0
        if getattr(worker, kind) and kind != "free":
            end = min(width, max(end, ends + 1))
        bar.append(sign * (end - ends), style)
        ends = max(ends, end)
    return bar


def _reason(worker: Worker) -> str:
    """Returns the error of a worker that is down, without its role and address, and without the gRPC status code."""
    cause = re.sub(rf"^\w+ worker {re.escape(worker.address)}: ", "", worker.error)
    return plain(re.sub(r"^[A-Z_]+: ", "", cause)) or "no reason known"
