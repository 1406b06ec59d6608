"""The frames of `v4serve top`."""

import os
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.console import Console

from tests.router.test_facts import LOAD, START, fleet, known, worker
from v4_cli.top_view import frame
from v4_router.facts import Facts, Revision, RouterState, facts

STALE = "no answer since 12:00:00: refused"
SIZES = [(80, 24), (80, 18), (80, 15), (40, 12), (30, 20), (100, 10)]


def shown(facts: Facts, width: int = 80, height: int | None = None, stale: str = "", styles: bool = False) -> str:
    with open(os.devnull, "w") as nowhere:
        console = Console(width=width, record=True, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(frame("http://127.0.0.1:8000", facts, width, height, stale))
        return console.export_text(styles=styles)


def many(count: int) -> Facts:
    """Returns the facts of a router with `count` workers in each pool."""
    each = [(role, f"demo-{role}-5f3a-{i:03}-abcdefgh") for role in ("prefill", "decode") for i in range(count)]
    workers = [worker(*one) for one in each]
    workers[-1]["state"] = "draining"
    return known(*workers)


def test_text_of_workers_is_not_markup() -> None:
    evil = "\x1b[2Jp\u202e[red]x[/red]\n"
    known_ = known(worker("prefill", evil, state="down", error=evil), worker("decode", "d"))
    seen = shown(replace(known_, revisions=[Revision(evil, False, evil)]))
    assert "\x1b" not in seen
    assert "\u202e" not in seen
    assert "?[2Jp?[red]x[/" in seen, "brackets are no markup"
    assert "revision ?[2Jp?[red]x[/red]?  does not serve  ?[2Jp?[red]x[/red]?" in seen


def test_occupancy_is_drawn_to_scale() -> None:
    (line,) = [line for line in shown(known(worker("decode", "d-1"))).splitlines() if "d-1" in line]
    assert re.search(r"ready +█{2}▓▒{3}·{6} +20 % +2 +1 +600 +3/16 +4", line), line
    full = {**LOAD, "slots_free": 0, "slots_evictable": 0, "blocks_used": 100, "checkpoint_slots_used": 0}
    (line,) = [line for line in shown(known(worker("decode", "d-1", load=full))).splitlines() if "d-1" in line]
    assert "█" * 12 in line
    few = {**LOAD, "slots_free": 98, "slots_evictable": 1, "blocks_used": 1, "checkpoint_slots_used": 1}
    (line,) = [line for line in shown(known(worker("decode", "d-1", load=few))).splitlines() if "d-1" in line]
    assert "█▓·" in line, "few are seen too"


@pytest.mark.parametrize("stale", ["", STALE])
@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize(("width", "height"), [*SIZES, (60, 40), (80, 30), (132, 50)])
def test_a_frame_fits_its_terminal(width: int, height: int, count: int, stale: str) -> None:
    seen = shown(many(count), width, height, stale).splitlines()
    assert max(map(len, seen)) <= width
    assert len(seen) <= height
    assert any(line.startswith("Prefill  ") for line in seen)
    assert any(line.startswith("Decode  ") for line in seen)
    assert any("draining" in line for line in seen), "who is not ready is not left out"
    rows = [line for line in seen if "abcdefgh" in line]
    assert len(rows) + sum(map(int, re.findall(r"and (\d+) more", "\n".join(seen)))) == 2 * count
    assert (seen[1] == (STALE if width > 30 else f"{STALE[:29]}…")) == bool(stale)
    assert (seen[-1] == "…") == (not seen[-1].startswith("█ used")), "what is left out is told"


def test_less_important_lines_are_left_out_first() -> None:
    parts = {"q quits": 0, "since the router started": 1, "p50": 2, "prefix hits": 3, "requests  ": 4, "worker  ": 5}
    kept = [{part for part in parts if part in shown(many(1), 79, height)} for height in range(1, 30)]
    assert kept[-1] == set(parts)
    assert kept[0] == set()
    for height, (less, more) in enumerate(pairwise(kept), start=1):
        assert less <= more, height
    order = sorted(parts, key=lambda part: sum(part in one for one in kept))
    assert order == list(parts)
    assert "Decode  0 of 1 ready" in shown(many(1), 79, 4)


@pytest.mark.parametrize("width", [30, 40, 60, 80])
def test_names_stay_legible_in_narrow_terminals(width: int) -> None:
    seen = shown(known(worker("decode", "127.0.0.1:30606"), worker("decode", "demo-decode-5f3a9c-x7k2p")), width)
    assert "127.0.0.1:30606" in seen
    assert "-x7k2p ready" in re.sub(" +", " ", seen), "of a longer one, the end, where it differs from others"
    assert ("20 %" in seen, "leases\n" in seen) == (True, width >= 80)


def test_the_state_stays_in_the_head_of_a_narrow_terminal() -> None:
    named = replace(known(worker("decode", "d")), router=RouterState("1", "deepseek-v4-" + "x" * 40, False, 0, 0))
    assert shown(named, 30).splitlines()[0] == "v4serve deepseek-v…  not ready"


def test_why_a_worker_is_down() -> None:
    told = "decode worker 10.0.0.1:3: UNAVAILABLE: Connection refused"
    wrong = "prefill worker 10.0.0.1:3: is a decode worker, but is listed as prefill: list it under its own role"
    seen = shown(known(
        worker("decode", "d-1", state="down", error=told), worker("prefill", "p-1", state="down", error=wrong),
        worker("decode", "d-2", state="down"),
    ))  # fmt: skip
    assert re.search(r"d-1 +down +Connection refused\n", seen)
    assert re.search(r"p-1 +down +is a decode worker, but is listed as", seen)
    assert re.search(r"d-2 +down +no reason known\n", seen)


def test_a_revision_that_serves_has_no_error() -> None:
    """The error of a worker that is down is shown in its own line if others of its revision serve."""
    one = known(worker("decode", "d"))
    told = [Revision("", True, "x is down"), Revision("b", True, "y is down"), Revision("", False, "z is down")]
    seen = shown(replace(one, revisions=told))
    assert re.findall("revision.*", seen) == ["revision b  serves", "revision –  does not serve  z is down"]


def test_stale_facts_are_dim() -> None:
    seen = shown(known(worker("decode", "d", state="unproven")), stale=STALE, styles=True).splitlines()
    assert re.search(r"\x1b\[1;31mno answer\x1b", seen[0])
    assert "ready" not in seen[0]
    assert seen[1].startswith("\x1b[1;31mno answer since")
    words = re.compile(r"\x1b\[([\d;]*)m([^\x1b]+)")
    rest = [found for line in (seen[0].replace("no answer", ""), *seen[2:]) for found in words.findall(line)]
    bright = [text for style, text in rest if text.strip() and ("2" not in style.split(";") or "1" in style.split(";"))]
    assert len(rest) > 30
    assert bright == []


def test_one_is_not_many() -> None:
    one = known(worker("decode", "d", load={**LOAD, "leases": 1, "queued_tokens": 1}))
    one = replace(one, router=replace(one.router, requests=1), retries=1.0, recomputations=1.0, migrations=1.0)
    seen = shown(one)
    for text in ("1 request running", "1 lease held", "1 retry, 1 prompt recomputed, 1 stream migrated", "1 token q"):
        assert text in seen


def test_a_frame_of_the_first_second() -> None:
    seen = shown(facts(START, START, fleet(worker("decode", "d-1")), 0))
    assert re.search(r"requests +–, – failed", seen)
    assert "last 0 s" not in seen
