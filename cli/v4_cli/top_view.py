"""Draws the facts of a router as one frame of `v4serve top`, a rich renderable. Pure.

If the terminal has too few lines, the less important ones are left out.
"""

import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from rich.console import Group, RenderableType
from rich.text import Text

from v4_cli.figures import NONE, count, duration, number, percent, rate, size
from v4_cli.top_table import PARTS, WIDE, line, plain, table
from v4_router.facts import Facts, Pool, Quantiles, Revision, Worker

# The ranks of lines. Lines of the lowest rank are left out first, all lines of a rank together.
_BLANK, _LEGEND, _SUMS, _LATENCIES = range(4)
_RATES = range(9, 3, -1)
_REVISIONS, _TITLES, _WORKERS, _ALWAYS = range(10, 14)

_NAMES = 13  # width of the names of rates, in characters
_TIME = 6  # width of a latency, in characters

_Ranked = tuple[int, Text]


def frame(url: str, facts: Facts, width: int, height: int | None = None, stale: str = "") -> RenderableType:
    """Returns a frame for a terminal of `width` columns and, if known, `height` rows.

    `stale`: why the facts are not current; "" if they are.
    """
    pools = [pool for pool in facts.pools if pool.workers]
    why = line((plain(stale), "bold red"))
    above = [(_ALWAYS, _head(url, facts, width, stale)), (_ALWAYS if stale else _BLANK, why)]
    gone, room = -1, None
    if height is not None:
        ranks = [rank for rank, _ in (*above, *_below(facts, pools, width, None)) if rank != _WORKERS]
        gone, room = fitting(ranks, [len(pool.workers) for pool in pools], height)
    below = _kept(_below(facts, pools, width, room), gone)
    if gone > _BLANK:
        below.append(Text("…", "dim"))
    for one in below if stale else ():
        one.stylize("not bold dim")
    return Group(*_kept(above, gone), *below)


def _kept(lines: Sequence[_Ranked], gone: int) -> list[Text]:
    return [text for rank, text in lines if rank > gone]


def fitting(ranks: Sequence[int], pools: Sequence[int], height: int) -> tuple[int, int]:
    """Returns the highest rank that is left out, and the most lines that a pool's workers get, so that the frame fits.

    `ranks`: the ranks of all lines except those of workers. `pools`: the number of workers of each pool.
    """
    gone, least, free = -1, 0, 0
    for gone, least in (
        *((rank, 4) for rank in range(-1, _RATES[-1])),
        *((rank, 2) for rank in range(_LATENCIES, _WORKERS)),
        (_WORKERS, 0),
    ):
        free = height - sum(rank > gone for rank in ranks) - (gone > _BLANK)
        if sum(min(one, least) for one in pools) <= free:
            break
    rooms = range(least, max([*pools, least]) + 1)
    return gone, max((room for room in rooms if sum(min(one, room) for one in pools) <= free), default=least)


def _below(facts: Facts, pools: Sequence[Pool], width: int, room: int | None) -> list[_Ranked]:
    """Returns the lines below the head, with at most `room` lines for the workers of each pool."""
    lines = _service(facts, width)
    for pool in pools:
        lines += [(_BLANK, Text()), (_ALWAYS, _pool_line(pool)), *_workers(pool.workers, room, width)]
    listed = [one for one in facts.revisions if one.name or (not one.serves and one.error)]
    revisions = [(_LEGEND if one.serves else _REVISIONS, _revision(one)) for one in listed]
    return [*lines, (_BLANK, Text()), *revisions, (_LEGEND, _legend())]


def _head(url: str, facts: Facts, width: int, stale: str) -> Text:
    router = facts.router
    text, style = ("ready", "bold green") if router.ready else ("not ready", "bold red")
    state = Text("no answer", "bold red") if stale else Text(text, style)
    name = Text(plain(router.served_name), "dim" if stale else "")
    name.truncate(max(1, width - len("v4serve ") - 2 - state.cell_len), overflow="ellipsis")
    left = line(("v4serve ", "dim" if stale else "bold"), name, "  ", state)
    return _beside(left, Text(f"{urlsplit(url).netloc}  {time.strftime('%H:%M:%S')}", "dim"), width)


def _beside(left: Text, right: Text, width: int) -> Text:
    """Returns a line with one text at each end; with the left one alone if there is no room for both."""
    between = width - left.cell_len - right.cell_len
    return line(left, " " * between, right) if between >= 2 else left


def _service(facts: Facts, width: int) -> list[_Ranked]:
    rates = [
        line((f"{name:<{_NAMES}}", "dim"), value)
        for name, value in (
            ("requests", f"{rate(facts.requests)}, {rate(facts.failed)} failed"),
            ("prompt", rate(facts.prompt_tokens, " tok/s")),
            ("generated", rate(facts.generated_tokens, " tok/s")),
            ("prefix hits", f"{percent(facts.hit_ratio)} of prompt tokens"),
            ("transfers", f"{size(facts.transferred_bytes, '/s')}, {rate(facts.transfers)}"),
            ("", f"{size(facts.transfer_speed, '/s')} each"),
        )
    ]
    latencies = [
        _latencies(f"last {facts.seconds:.0f} s" if facts.seconds else "", ("p50", "p90", "p99"), "dim"),
        _latencies("TTFT", _quantiles(facts.ttft)),
        _latencies("ITL", _quantiles(facts.itl)),
    ]
    below = [(_LATENCIES, one) for one in latencies]
    if width >= WIDE:
        rates[: len(latencies)] = [_beside(*both, width) for both in zip(rates, latencies, strict=False)]
        below = []
    return [*zip(_RATES, rates, strict=True), *below, *((_SUMS, one) for one in _sums(facts))]


def _latencies(name: str, values: Sequence[str], style: str = "") -> Text:
    return line((f"{name:<9}", "dim"), ("".join(f" {value:>{_TIME}}" for value in values), style))


def _quantiles(values: Quantiles) -> tuple[str, ...]:
    return tuple(duration(value) for value in (values.p50, values.p90, values.p99))


def _sums(facts: Facts) -> tuple[Text, Text]:
    router = facts.router
    leases = sum(pool.leases for pool in facts.pools)
    return (
        line(
            f"{count(router.requests, 'request')} running, {number(router.waiting_for_room)} waiting for room, "
            f"{count(leases, 'lease')} held"
        ),
        line(
            f"{count(facts.retries, 'retry', 'retries')}, {count(facts.recomputations, 'prompt')} recomputed, "
            f"{count(facts.migrations, 'stream')} migrated",
            (" since the router started", "dim"),
        ),
    )


def _pool_line(pool: Pool) -> Text:
    return line(
        (pool.role.capitalize(), "bold"),
        f"  {pool.ready} of {len(pool.workers)} ready, {number(pool.running)} running, {number(pool.waiting)} waiting, "
        f"{count(pool.queued_tokens, 'token')} queued",
    )


def _workers(workers: Sequence[Worker], room: int | None, width: int) -> list[_Ranked]:
    """Returns the lines of a pool's workers; if some are left out, those that are not ready come first."""
    left_out = 0 if room is None or len(workers) <= room else len(workers) - max(room, 2) + 1
    if left_out:
        workers = sorted(workers, key=lambda worker: worker.state == "ready")[:-left_out]
    titles, *lines = table(workers, width)
    if left_out:
        lines.append(line((f"and {left_out} more", "dim")))
    return [(_TITLES, titles), *((_WORKERS, one) for one in lines)]


def _revision(one: Revision) -> Text:
    state = ("serves", "green") if one.serves else ("does not serve", "yellow")
    error = "" if one.serves else f"  {plain(one.error)}"
    return line(f"revision {plain(one.name) or NONE}  ", state, (error, "red"))


def _legend() -> Text:
    parts = [part for name, sign, style in PARTS for part in ((sign, style), f" {name}  ")]
    return line(*parts, ("q quits", "dim"))
