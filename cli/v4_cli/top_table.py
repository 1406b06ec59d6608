"""The workers of a pool as lines of `v4serve top`. Pure.

Where lines are too short for all columns, the less important ones go, and names stay legible. What comes from workers
and other machines is shown as text, without markup or control characters.
"""

import re
from collections.abc import Sequence

from rich.text import Text

from v4_cli.figures import number, percent
from v4_router.facts import Worker

PARTS = (("used", "█", "blue"), ("checkpoint", "▓", "magenta"), ("cached", "▒", "cyan"), ("free", "·", "dim"))
WIDE = 80  # columns, from which everything has its place

_STATES = {"ready": "green", "down": "red"}  # others: yellow
_NAME = 15  # columns of a name at least: what most addresses need
_BAR = 12  # columns at 80; half of whatever is more is the bar's
_SLOTS = "block slots"
_FIRST_LEFT_OUT = ("tails", "leases", _SLOTS, "queued", "wait", "run", "used")


def plain(text: str) -> str:
    """Without control characters."""
    return "".join(character if character.isprintable() else "?" for character in text)


def line(*parts: str | Text | tuple[str, str]) -> Text:
    """One line, whatever the width."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def table(workers: Sequence[Worker], width: int) -> list[Text]:
    """Titles, and a line for each."""
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
    """Of the columns, by title, that have room beside a name."""
    widths = {title: max(len(title), *(known[title].cell_len for known in figures)) for title in figures[0]}
    for title in _FIRST_LEFT_OUT:
        if _NAME + sum(1 + one for one in widths.values()) > width:
            del widths[title]
    return widths


def _line(cells: Sequence[Text]) -> Text:
    return line(Text(" ").join(cells))


def _cell(text: Text, width: int, title: str = "") -> Text:
    """Figures stand to the right, all else to the left."""
    text.truncate(width, overflow="ellipsis")
    text.align("left" if title in ("", _SLOTS) else "right", width)
    return text


def _end(name: str, width: int) -> Text:
    """Of a name that is too long, the end: names of pods differ there."""
    return Text(name if len(name) <= width else f"…{name[1 - width :]}")


def _figures(worker: Worker, bar: int) -> dict[str, Text]:
    """What a worker has, by the title of its column."""
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
    """Block slots by what they hold; what there is of a kind shows, however few."""
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
    """Why it does not answer, without what stands beside it: role and address; and without gRPC's word for that."""
    cause = re.sub(rf"^\w+ worker {re.escape(worker.address)}: ", "", worker.error)
    return plain(re.sub(r"^[A-Z_]+: ", "", cause)) or "no word"
