"""Every alert fires in its case and not in one that comes close; each has a page that says what to do."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.observability.prometheus import PrometheusTools
from tests.observability.promtest import Asked, Labels, check, rules_of, series

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
PAGES = "https://github.com/v4serve/v4serve/blob/main/docs/runbooks"
ALERTS = [rule for rule in rules_of("alerts.yaml") if "alert" in rule]
NAMES = sorted({str(rule["alert"]) for rule in ALERTS})
SECTIONS = ["## Meaning", "## Impact", "## Look at", "## Do"]

POD = {"namespace": "ns", "deployment": "demo", "pod": "p"}
NS = {"namespace": "ns", "deployment": "demo"}
FAST, SLOW = {"severity": "critical", "window": "1h"}, {"severity": "warning", "window": "6h"}
_LONG = 400  # minutes that make up what was before
CRITICAL, WARNING = {"severity": "critical"}, {"severity": "warning"}


@dataclass(frozen=True)
class Case:
    """Series, and the labels of the alerts that fire then."""

    name: str
    alert: str
    given: Mapping[str, str]
    minute: int
    firing: Sequence[Labels] = ()


def histogram(name: str, bound: str, in_time: str, total: str) -> dict[str, str]:
    """A router's histogram, of which so many fall below `bound`."""
    router = {**POD, "role": "router"}
    return {
        series(f"{name}_bucket", **router, le=bound): in_time,
        series(f"{name}_bucket", **router, le="+Inf"): total,
        series(f"{name}_count", **router): total,
    }


def without_token(values: str) -> dict[str, str]:
    """Requests that ended before their first token by the service's fault."""
    return {series("v4serve_requests_without_token_total", **POD, role="router"): values}


def first_tokens(values: str, without: str) -> dict[str, str]:
    """First tokens of a router, all in time, and requests that got none."""
    return histogram("v4serve_time_to_first_token_seconds", "2.5", values, values) | without_token(without)


def burn(alert: str, name: str, bound: str, n: int, more: Mapping[str, str] | None = None) -> list[Case]:
    """Of `n` times 100 a minute, for hours."""
    total = f"0+{100 * n}x400"
    given = {
        "fast": histogram(name, bound, f"0+{100 * n}x300 {30000 * n}+{80 * n}x100", total),
        "slow": histogram(name, bound, f"0+{92 * n}x400", total),
        "within": histogram(name, bound, f"0+{99 * n}x400", total),
        "over": histogram(name, bound, f"0+{80 * n}x300 {24000 * n}+{100 * n}x100", total),
        "few": histogram(name, bound, "0x400", f"0+{0.02 * n}x400"),
        "idle": histogram(name, bound, "0x400", "0x400"),
    }
    firing = {"fast": [{**NS, **FAST}], "slow": [{**NS, **SLOW}]}
    more = more or {}
    return [Case(what, alert, {**values, **more}, 365, firing.get(what, ())) for what, values in given.items()]


def ended(**outcomes: str) -> dict[str, str]:
    """Requests of a router by outcome, statuses as s503."""
    return {
        series("v4serve_requests_total", **POD, endpoint="chat", outcome=outcome.removeprefix("s")): values
        for outcome, values in outcomes.items()
    }


def work(running: str, generated: str, computed: str = "") -> dict[str, str]:
    """Requests that a router serves, its tokens, and prompt tokens that a worker computed, if there is one."""
    given = {
        series("v4serve_requests_running", **POD, role="router"): running,
        series("v4serve_generated_tokens_total", **POD, role="router"): generated,
    }
    worker = {**POD, "pod": "w", "role": "prefill"}
    return given | ({series("v4serve_prefill_tokens_total", **worker): computed} if computed else {})


def leases(held: str, sent: str, released: str = "0x40", expired: str = "0x40") -> dict[str, str]:
    """Of a prefill worker."""
    worker = {**POD, "role": "prefill"}
    return {
        series("v4serve_leases_held", **worker): held,
        series("v4serve_leased_bytes_sent_total", **worker): sent,
        series("v4serve_leases_total", **worker, end="released"): released,
        series("v4serve_leases_total", **worker, end="expired"): expired,
    }


def transfers(adopted: str, failed: str, cancelled: str = "0x60") -> dict[str, str]:
    """Of a decode worker."""
    results = {"adopted": adopted, "failed": failed, "cancelled": cancelled}
    worker = {**POD, "role": "decode", "transport": "grpc"}
    return {series("v4serve_transfers_total", **worker, result=result): values for result, values in results.items()}


def prefixes(hit: str, missed: str) -> dict[str, str]:
    """Prompt tokens of a prefill worker."""
    results = {"hit": hit, "no_blocks": missed}
    return {series("v4serve_prefix_tokens_total", **POD, result=result): values for result, values in results.items()}


def changed(before: float, after: float) -> dict[str, str]:
    """2000 prompt tokens a minute, of which this share was found, and another is since."""
    old, new = 2000 * before, 2000 * after
    hit = f"0+{old}x{_LONG} {old * _LONG}+{new}x120"
    return prefixes(hit, f"0+{2000 - old}x{_LONG} {(2000 - old) * _LONG}+{2000 - new}x120")


def preemptions(count: str, requests: str) -> dict[str, str]:
    """Of a worker, and requests that ended."""
    ended = series("v4serve_requests_total", **{**POD, "pod": "router"}, endpoint="chat", outcome="ok")
    return {series("v4serve_preemptions_total", **POD, role="decode"): count, ended: requests}


def pool(slots: str, tails_used: str, waiting: str) -> dict[str, str]:
    """Of a decode worker with 16 tails."""
    worker = {**POD, "role": "decode"}
    free = {"16x60": "0x60"}.get(tails_used, "8x60")
    return {
        series("v4serve_block_slots_used_ratio", **worker): slots,
        series("v4serve_live_tails", **worker, state="used"): tails_used,
        series("v4serve_live_tails", **worker, state="free"): free,
        series("v4serve_sequences", **worker, state="waiting"): waiting,
        series("v4serve_sequences", **worker, state="running"): "9x60",
    }


def decode_pool(tails_used: str, refused: str = "0x60", for_room: str = "0x60") -> dict[str, str]:
    """Of a decode worker on which nothing waits, as always; caches refused by it, and those that routers hold back."""
    worker = {**POD, "role": "decode"}
    return pool("0.4x60", tails_used, "0x60") | {
        series("v4serve_transfers_total", **worker, transport="grpc", result="refused"): refused,
        series("v4serve_requests_waiting_for_room", **{**POD, "pod": "r0"}, role="router"): for_room,
    }


def desired(role: str, count: int = 1) -> dict[str, str]:
    """What the operator says that should be there."""
    return {series("v4serve_deployment_workers", **NS, role=role, state="desired"): f"{count}x60"}


def up(*values: str) -> dict[str, str]:
    """Whether routers answer."""
    return {series("up", **NS, pod=f"r{index}", role="router"): one for index, one in enumerate(values)}


def routable(role: str, *values: str) -> dict[str, str]:
    """Workers as one router sees them."""
    return {
        series("v4serve_worker_routable", **NS, pod="r0", worker=f"w{index}", role=role): one
        for index, one in enumerate(values)
    }


def condition(kind: str, status: str, reason: str, values: str) -> dict[str, str]:
    """Of a deployment, as the operator tells it."""
    return {series("v4serve_deployment_condition", **NS, type=kind, status=status, reason=reason): values}


def errors(values: str) -> dict[str, str]:
    """Of the operator."""
    return {series("v4serve_operator_errors_total", namespace="system", pod="o", kind="api"): values}


_TTFT = "V4ServeTimeToFirstTokenBudgetBurn"
_FAILING, _STALLED = "V4ServeRequestsFailing", "V4ServeStalled"
_LEASES, _PREFIX = "V4ServeLeasesNotReturned", "V4ServePrefixHitRatioCollapse"
_ROLLOUT, _POOL = "V4ServeRolloutStuck", "V4ServePoolExhausted"

CASES = [
    *burn(_TTFT, "v4serve_time_to_first_token_seconds", "2.5", 1, without_token("0x400")),
    Case(
        "nothing answers any more",
        _TTFT,
        first_tokens("0+100x300 30000x100", "0x300 0+100x100"),
        365,
        [{**NS, **FAST}, {**NS, **SLOW}],
    ),
    Case("a few fail", _TTFT, first_tokens("0+100x400", "0+0.9x400"), 365),
    *burn("V4ServeInterTokenLatencyBudgetBurn", "v4serve_inter_token_latency_seconds", "0.1", 100),
    Case("all down", "V4ServeRouterDown", up("1x5 0x20", "1x5 0x20"), 9, [{**NS, **CRITICAL}]),
    Case("all gone", "V4ServeRouterDown", up("1x5 stale") | desired("router"), 15, [{**NS, **CRITICAL}]),
    Case("one of two", "V4ServeRouterDown", up("0x20", "1x20") | desired("router", 2), 15),
    Case("a restart", "V4ServeRouterDown", up("1x5 0 1x20") | desired("router"), 8),
    Case("none wanted", "V4ServeRouterDown", up("1x5 stale") | desired("router", 0), 15),
    Case(
        "unusable",
        "V4ServeNoReadyWorker",
        up("1x20") | routable("prefill", "1x20") | routable("decode", "0x20", "0x20") | desired("decode", 2),
        15,
        [{**NS, "role": "decode", **CRITICAL}],
    ),
    Case(
        "gone",
        "V4ServeNoReadyWorker",
        up("1x20") | routable("prefill", "1x20") | routable("decode", "1x5 stale") | desired("decode"),
        15,
        [{**NS, "role": "decode", **CRITICAL}],
    ),
    Case(
        "one of two",
        "V4ServeNoReadyWorker",
        up("1x20") | routable("decode", "0x20", "1x20") | desired("decode", 2),
        15,
    ),
    Case("none wanted", "V4ServeNoReadyWorker", up("1x20") | routable("decode", "1x20") | desired("prefill", 0), 15),
    Case("no router to ask", "V4ServeNoReadyWorker", up("0x20") | desired("decode"), 15),
    Case("a tenth", _FAILING, ended(ok="0+9x60", s503="0+1x60"), 30, [{**NS, **CRITICAL}]),
    Case("all", _FAILING, ended(ok="9x60", s500="0+1x60"), 30, [{**NS, **CRITICAL}]),
    Case("few of many", _FAILING, ended(ok="0+96x60", s503="0+4x60"), 30),
    Case("of clients", _FAILING, ended(ok="0+5x60", s400="0+9x60", s429="0+9x60", client_gone="0+9x60"), 30),
    Case("a moment", _FAILING, ended(ok="0+9x60", s503="0x20 9x40"), 23),
    Case("one", _FAILING, ended(ok="1x60", s503="0x24 1 2x30"), 29),
    Case("no worker moves", _STALLED, work("2x60", "0+9x20 180x40", "0+9x20 180x40"), 30, [{**NS, **CRITICAL}]),
    Case("no worker is left", _STALLED, work("2x60", "0+9x20 180x40"), 30, [{**NS, **CRITICAL}]),
    Case("tokens come", _STALLED, work("2x60", "0+9x60", "180x60"), 30),
    Case("a long prompt is computed", _STALLED, work("2x60", "180x60", "0+9x60"), 30),
    Case("nobody asks", _STALLED, work("0x60", "180x60", "180x60"), 30),
    Case("somebody begins to ask", _STALLED, work("0x28 1x30", "180x60", "180x60"), 30),
    Case("for minutes", _STALLED, work("2x60", "0+9x20 180x4 180+9x30", "0+9x20 180x40"), 24),
    Case("held", _LEASES, leases("3x30", "0+9x5 45x25"), 25, [{**POD, "role": "prefill", "sign": "unread", **WARNING}]),
    Case(
        "a leak beside traffic",
        _LEASES,
        leases("3x40", "0+9x40", "0+5x40", "0+1x40"),
        25,
        [{**POD, "role": "prefill", "sign": "expired", **WARNING}],
    ),
    Case("few of many expire", _LEASES, leases("3x40", "0+9x40", "0+50x40", "0+1x40"), 25),
    Case("one expires", _LEASES, leases("0x40", "0x40", "0x40", "0x16 1x24"), 24),
    Case("being read", _LEASES, leases("3x30", "0+9x30"), 25),
    Case("come and go", _LEASES, leases("3 3 3 0 3 3 3 3 0 3 3 3 3 0 3 3 3 3 0 3 3 3 3 0 3 3", "0x30"), 25),
    Case(
        "a tenth",
        "V4ServeTransferFailures",
        transfers("0+9x60", "0+1x60"),
        20,
        [{**NS, "transport": "grpc", **WARNING}],
    ),
    Case("few of many", "V4ServeTransferFailures", transfers("0+90x60", "0+1x60"), 20),
    Case("one of two", "V4ServeTransferFailures", transfers("0x19 1x40", "0x18 1x40"), 25),
    Case("given up by clients", "V4ServeTransferFailures", transfers("0+9x60", "0x60", "0+9x60"), 20),
    Case("lost", _PREFIX, changed(0.4, 0.05), _LONG + 100, [{**NS, **WARNING}]),
    Case("a little less", _PREFIX, changed(0.4, 0.25), _LONG + 100),
    Case("never had any", _PREFIX, changed(0.05, 0.01), _LONG + 100),
    Case("idle at night", _PREFIX, prefixes("0+800x300 240000x400", "0+1200x300 360000x400"), 690),
    Case(
        "lost after a night",
        _PREFIX,
        prefixes("0+800x300 240000x200 240000+100x200", "0+1200x300 360000x200 360000+1900x200"),
        630,
        [{**NS, **WARNING}],
    ),
    Case("too few to tell", _PREFIX, prefixes("0+8x400 3200x120", "0+12x400 4800+20x120"), _LONG + 100),
    Case("often", "V4ServePreemptionStorm", preemptions("0+5x60", "0+10x60"), 30, [{**NS, **WARNING}]),
    Case("and nothing ends", "V4ServePreemptionStorm", preemptions("0+5x60", "7x60"), 30, [{**NS, **WARNING}]),
    Case("for a few", "V4ServePreemptionStorm", preemptions("0+1x60", "0+10x60"), 30),
    Case("once", "V4ServePreemptionStorm", preemptions("0x10 3x60", "0x60"), 30),
    Case("slots", "V4ServePoolExhausted", pool("0.97x60", "8x60", "2x60"), 30, [{**POD, "role": "decode", **WARNING}]),
    Case("tails", "V4ServePoolExhausted", pool("0.4x60", "16x60", "2x60"), 30, [{**POD, "role": "decode", **WARNING}]),
    Case("caches refused", _POOL, decode_pool("16x60", refused="0+1x60"), 30, [{**POD, "role": "decode", **WARNING}]),
    Case("caches held back", _POOL, decode_pool("16x60", for_room="2x60"), 30, [{**POD, "role": "decode", **WARNING}]),
    Case("full and all fit", _POOL, decode_pool("16x60", refused="9x60"), 30),
    Case("held back with room", _POOL, decode_pool("8x60", refused="0+1x60", for_room="2x60"), 30),
    Case(
        "held back for another role",
        _POOL,
        {name.replace("decode", "prefill"): values for name, values in decode_pool("16x60", for_room="2x60").items()},
        30,
    ),
    Case("full and nobody waits", "V4ServePoolExhausted", pool("0.97x60", "16x60", "0x60"), 30),
    Case("they wait with room", "V4ServePoolExhausted", pool("0.9x60", "8x60", "2x60"), 30),
    Case("for minutes", "V4ServePoolExhausted", pool("0.4x20 0.97x8 0.4x30", "8x60", "2x60"), 27),
    *(
        Case(reason, _ROLLOUT, condition("Progressing", "False", reason, "1x30"), 20, [{**NS, **WARNING}])
        for reason in ("ProgressDeadlineExceeded", "ModelFetchFailed")
    ),
    Case("wrong", _ROLLOUT, condition("Degraded", "True", "ProbeFailed", "1x30"), 20, [{**NS, **WARNING}]),
    Case(
        "now for this reason, now for that",
        _ROLLOUT,
        condition("Degraded", "True", "ProbeFailed", "1x10 stale")
        | condition("Degraded", "True", "WorkersEnd", "_x10 1x30"),
        20,
        [{**NS, **WARNING}],
    ),
    Case("on its way", _ROLLOUT, condition("Progressing", "True", "RollingOut", "1x30"), 20),
    Case("done", _ROLLOUT, condition("Progressing", "False", "Complete", "1x30"), 20),
    Case("well", _ROLLOUT, condition("Degraded", "False", "AsExpected", "1x30"), 20),
    Case("went on", _ROLLOUT, condition("Progressing", "False", "ProgressDeadlineExceeded", "1x10 stale"), 20),
    Case(
        "again and again",
        "V4ServeOperatorErrors",
        errors("0+1x60"),
        40,
        [{"namespace": "system", "kind": "api", **WARNING}],
    ),
    Case("one an hour", "V4ServeOperatorErrors", errors("0x20 1x60 2x60"), 40),
    Case("a moment", "V4ServeOperatorErrors", errors("0x20 5x60"), 30),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}: {case.name}")
def test_it_fires_when_it_should(prometheus_tools: PrometheusTools, tmp_path: Path, case: Case) -> None:
    name = {"alertname": case.alert, "alertstate": "firing"}
    found = [({"__name__": "ALERTS", **name, **labels}, 1.0) for labels in case.firing]
    asked = Asked(series("ALERTS", **name), case.minute, found)
    check(prometheus_tools, "alerts.yaml", tmp_path, case.given, asked, alert=case.alert)


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    assert sorted({case.alert for case in CASES if case.firing}) == NAMES
    assert sorted({case.alert for case in CASES if not case.firing}) == NAMES
    severities = {(case.alert, labels["severity"]) for case in CASES for labels in case.firing}
    assert severities == {(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_must(rule: Mapping[str, dict[str, str]]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"{PAGES}/{rule['alert']}.md"
    assert "for" in rule


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    assert sorted(page.stem for page in RUNBOOKS.glob("*.md")) == NAMES


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_says_what_to_look_at_and_what_to_do(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {page.stem}\n")
    assert re.findall(r"^## .*$", text, re.MULTILINE) == SECTIONS
    assert "    kubectl " in text.partition(SECTIONS[2])[2]


def test_annotations_are_filled_in(prometheus_tools: PrometheusTools, tmp_path: Path) -> None:
    annotations = {
        "summary": "Cache transfers of ns/demo fail.",
        "description": "10% of the transfers over grpc failed in the last 10 minutes. Their prompts are computed "
        "again, or their requests fail.",
        "runbook_url": f"{PAGES}/V4ServeTransferFailures.md",
    }
    labels = {**NS, "transport": "grpc", **WARNING}
    alert = {
        "eval_time": "20m",
        "alertname": "V4ServeTransferFailures",
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": annotations}],
    }
    check(prometheus_tools, "alerts.yaml", tmp_path, transfers("0+9x60", "0+1x60"), alert_rule_test=[alert])
