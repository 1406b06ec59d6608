"""One frame of `v4serve top`: facts as a rich renderable. Pure.

Names and errors come from workers and other machines: they are shown as text, without markup or control characters.
"""

import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from v4_cli.figures import NONE, duration, number, percent, rate, size
from v4_router.facts import Facts, Pool, Quantiles, Revision, Worker

_STATES = {"ready": "green", "down": "red"}  # others: yellow
_PARTS = (("used", "█", "blue"), ("checkpoint", "▓", "magenta"), ("cached", "▒", "cyan"), ("free", "·", "dim"))
_WIDE = 80  # columns, from which latencies stand beside rates
_BAR = 12  # columns at 80; whatever is more is the bar's
_LINES = 12  # of a frame, beside those of pools and revisions
_LINES_OF_POOL = 3  # beside those of workers


def frame(url: str, facts: Facts, width: int, height: int | None = None, silent: str = "") -> RenderableType:
    """For a terminal of so many columns and, if known, rows. `silent`: why what is shown is old."""
    pools = [pool for pool in facts.pools if pool.workers]
    parts: list[RenderableType] = [_head(url, facts), _line((_plain(silent), "bold red")), _service(facts, width)]
    revisions = [_revision(one) for one in facts.revisions if one.name or one.error]
    room = None
    if height is not None and pools:
        others = _LINES + len(revisions) + _LINES_OF_POOL * len(pools)
        room = max(2, (height - others) // len(pools))
    for pool in pools:
        parts += [Text(), _pool_line(pool), *_workers(pool.workers, room, width)]
    return Group(*parts, Text(), *revisions, _legend())


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _line(*parts: str | Text | tuple[str, str]) -> Text:
    """One line, whatever the width."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _head(url: str, facts: Facts) -> RenderableType:
    router = facts.router
    ready = Text("ready", "bold green") if router.ready else Text("not ready", "bold red")
    left = Text.assemble(("v4serve ", "bold"), _plain(router.served_name), "  ", ready)
    right = Text(f"{urlsplit(url).netloc}  {time.strftime('%H:%M:%S')}", "dim")
    return _beside(left, right)


def _beside(left: RenderableType, right: RenderableType) -> Table:
    both = Table.grid(expand=True, padding=(0, 2, 0, 0))
    both.add_column()
    both.add_column(justify="right")
    both.add_row(left, right)
    return both


def _service(facts: Facts, width: int) -> RenderableType:
    rates = Table.grid(padding=(0, 2, 0, 0))
    for name, value in (
        ("requests", f"{rate(facts.requests)}, {rate(facts.failed)} failed"),
        ("prompt", rate(facts.prompt_tokens, " tok/s")),
        ("prefix hits", f"{percent(facts.hit_ratio)} of prompt tokens"),
        ("transfers", f"{size(facts.transferred_bytes, '/s')}, {rate(facts.transfers)}"),
        ("", f"{size(facts.transfer_speed, '/s')} each"),
        ("generated", rate(facts.generated_tokens, " tok/s")),
    ):
        rates.add_row(Text(name, "dim"), Text(value))
    latencies = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    latencies.add_column(f"last {facts.seconds:.0f} s" if facts.seconds else "", min_width=9)
    for name in ("p50", "p90", "p99"):
        latencies.add_column(name, justify="right", min_width=7)
    for name, values in (("TTFT", facts.ttft), ("ITL", facts.itl)):
        latencies.add_row(Text(name, "dim"), *_quantiles(values))
    both = (_beside(rates, latencies),) if width >= _WIDE else (rates, latencies)
    return Group(*both, *_sums(facts))


def _quantiles(values: Quantiles) -> tuple[str, ...]:
    return tuple(duration(value) for value in (values.p50, values.p90, values.p99))


def _sums(facts: Facts) -> tuple[Text, Text]:
    router = facts.router
    leases = sum(pool.leases for pool in facts.pools)
    return (
        _line(
            f"{number(router.requests)} requests running, {number(router.waiting_for_room)} waiting for room, "
            f"{number(leases)} leases held"
        ),
        _line(
            f"{number(facts.retries)} retries, {number(facts.recomputations)} prompts recomputed, "
            f"{number(facts.migrations)} streams migrated",
            (" since the router began", "dim"),
        ),
    )


def _pool_line(pool: Pool) -> Text:
    return _line(
        (pool.role.capitalize(), "bold"),
        f"  {pool.ready} of {len(pool.workers)} ready, {number(pool.running)} running, {number(pool.waiting)} waiting, "
        f"{number(pool.queued_tokens)} tokens queued",
    )


def _workers(workers: Sequence[Worker], room: int | None, width: int) -> Iterator[RenderableType]:
    """In at most `room` lines below a header; those that are not ready come first where some are left out."""
    if room is None or len(workers) <= room:
        yield _table(workers, width)
        return
    yield _table(sorted(workers, key=lambda worker: worker.state == "ready")[: room - 1], width)
    yield _line((f"and {len(workers) - room + 1} more", "dim"))


def _table(workers: Sequence[Worker], width: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=True)
    table.add_column("worker", no_wrap=True, ratio=1, min_width=15)
    table.add_column("state", no_wrap=True)
    bar = _BAR + max(0, width - _WIDE) // 2
    table.add_column("block slots", min_width=bar, no_wrap=True)
    for title in ("taken", "run", "wait", "queued", "tails", "leases"):
        table.add_column(title, justify="right", no_wrap=True)
    for worker in workers:
        name = Text(_plain(worker.name))
        state = Text(worker.state, _STATES.get(worker.state, "yellow"))
        if worker.state == "down":
            table.add_row(name, state, Text("no word", "dim"))
            continue
        taken = (worker.used + worker.checkpoint) / worker.slots if worker.slots else None
        counts = (worker.running, worker.waiting, worker.queued_tokens)
        figures = (*map(number, counts), f"{worker.tails_used}/{worker.tails}", number(worker.leases))
        table.add_row(name, state, _bar(worker, bar), percent(taken), *figures)
    return table


def _bar(worker: Worker, width: int) -> Text:
    """Block slots by what they hold; what there is of a kind shows, however few."""
    bar, ends = Text(), 0
    total = 0
    for kind, sign, style in _PARTS:
        total += getattr(worker, kind)
        end = round(width * total / worker.slots) if worker.slots else 0
        if getattr(worker, kind) and kind != "free":
            end = min(width, max(end, ends + 1))
        bar.append(sign * (end - ends), style)
        ends = max(ends, end)
    return bar


def _revision(one: Revision) -> Text:
    state = ("serves", "green") if one.serves else ("does not serve", "yellow")
    return _line(f"revision {_plain(one.name) or NONE}  ", state, (f"  {_plain(one.error)}", "red"))


def _legend() -> Text:
    parts = [part for name, sign, style in _PARTS for part in ((sign, style), f" {name}  ")]
    return _line(*parts, ("q ends", "dim"))
