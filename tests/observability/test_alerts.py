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


def burn(alert: str, name: str, bound: str, n: int) -> list[Case]:
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
    return [Case(what, alert, values, 365, firing.get(what, ())) for what, values in given.items()]


def leases(held: str, sent: str) -> dict[str, str]:
    """Of a prefill worker."""
    worker = {**POD, "role": "prefill"}
    return {series("v4serve_leases_held", **worker): held, series("v4serve_leased_bytes_sent_total", **worker): sent}


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


def progressing(status: str, reason: str, values: str) -> dict[str, str]:
    """A condition of a deployment, as the operator tells it."""
    condition = {**NS, "type": "Progressing", "status": status, "reason": reason}
    return {series("v4serve_deployment_condition", **condition): values}


def errors(values: str) -> dict[str, str]:
    """Of the operator."""
    return {series("v4serve_operator_errors_total", namespace="system", pod="o", kind="api"): values}


_LEASES, _PREFIX = "V4ServeLeasesNotReturned", "V4ServePrefixHitRatioCollapse"

CASES = [
    *burn("V4ServeTimeToFirstTokenBudgetBurn", "v4serve_time_to_first_token_seconds", "2.5", 1),
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
    Case("held", _LEASES, leases("3x30", "0+9x5 45x25"), 25, [{**POD, "role": "prefill", **WARNING}]),
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
    Case("full and nobody waits", "V4ServePoolExhausted", pool("0.97x60", "16x60", "0x60"), 30),
    Case("they wait with room", "V4ServePoolExhausted", pool("0.9x60", "8x60", "2x60"), 30),
    Case("for minutes", "V4ServePoolExhausted", pool("0.4x20 0.97x8 0.4x30", "8x60", "2x60"), 27),
    Case(
        "stuck",
        "V4ServeRolloutStuck",
        progressing("False", "ProgressDeadlineExceeded", "1x20"),
        10,
        [{**NS, **WARNING}],
    ),
    Case("on its way", "V4ServeRolloutStuck", progressing("True", "Exchanging", "1x20"), 10),
    Case("done", "V4ServeRolloutStuck", progressing("False", "Complete", "1x20"), 10),
    Case("went on", "V4ServeRolloutStuck", progressing("False", "ProgressDeadlineExceeded", "1x5 stale"), 10),
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
    check(prometheus_tools, "alerts.yaml", tmp_path, case.given, asked)


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    assert sorted({case.alert for case in CASES if case.firing}) == NAMES
    assert sorted({case.alert for case in CASES if not case.firing}) == NAMES
    severities = {(case.alert, labels["severity"]) for case in CASES for labels in case.firing}
    assert severities == {(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_must(rule: Mapping[str, dict[str, str]]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"
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
        "summary": "Caches of ns/demo do not arrive.",
        "description": "10% of the transfers by grpc failed over the last 10 minutes. Prompts are computed again, or "
        "requests fail.",
        "runbook_url": "docs/runbooks/V4ServeTransferFailures.md",
    }
    labels = {**NS, "transport": "grpc", **WARNING}
    alert = {
        "eval_time": "20m",
        "alertname": "V4ServeTransferFailures",
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": annotations}],
    }
    check(prometheus_tools, "alerts.yaml", tmp_path, transfers("0+9x60", "0+1x60"), alert_rule_test=[alert])
