"""Recorded under vLLM's names, series behave as the ones that they were made from, also when a pod starts again."""

import re
from pathlib import Path

import pytest

from tests.cluster.machine.errors import CommandFailed
from tests.observability.prometheus import PrometheusTools
from tests.observability.promtest import FILES, Asked, check, rules_of, series

VLLM = rules_of("vllm.yaml")
RENAMED = {str(rule["record"]): str(rule["expr"]) for rule in VLLM}
OWN = re.compile(r"v4serve_\w+(?:\{[^}]*\})?")

# What dashboards and autoscalers made for vLLM ask for.
HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens_total",
    "nixl_xfer_time_seconds",
)
OTHERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "nixl_bytes_transferred_sum",
    "nixl_bytes_transferred_count",
    "nixl_num_failed_transfers_total",
)
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
COUNTERS = sorted(set(RENAMED) - set(GAUGES))
POD = {"namespace": "ns", "deployment": "demo"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_plain_files_are_valid(prometheus_tools: PrometheusTools, file: Path) -> None:
    assert "SUCCESS" in prometheus_tools.promtool("check", "rules", file)


def test_every_name_is_recorded_once_with_all_its_kinds() -> None:
    wanted = {f"vllm:{name}_{kind}" for name in HISTOGRAMS for kind in ("bucket", "sum", "count")}
    assert len(RENAMED) == len(VLLM)
    assert set(RENAMED) == wanted | {f"vllm:{name}" for name in OTHERS}


@pytest.mark.parametrize("record", RENAMED)
def test_a_rule_renames_and_does_nothing_else(record: str) -> None:
    bare = OWN.sub("", RENAMED[record])
    words = set(re.findall(r"[a-z_]+\s*\(", bare))
    assert words == {"label_replace("}
    assert len(OWN.findall(RENAMED[record])) == 1
    for kind in ("_bucket", "_sum", "_count"):
        if record.endswith(kind) and "bytes" not in record:
            assert OWN.findall(RENAMED[record])[0].endswith(kind)


def own(record: str) -> str:
    """The series that a rule renames, as it selects them."""
    (found,) = OWN.findall(RENAMED[record])
    return str(found)


def selected(expr: str) -> list[dict[str, str]]:
    """Labels that a selector asks for, one after the other."""
    found = re.findall(r'(\w+)=~?"([^"]*)"', expr)
    return [{label: value} for label, text in found for value in text.split("|")] or [{}]


def restarted(record: str) -> dict[str, str]:
    """Series of a pod that starts again in its 10th minute, of one that goes then, and of one that comes.

    The second has no name of the first's: its samples end with the mark that a scraper sets.
    """
    given = {}
    name = own(record).partition("{")[0]
    for labels in selected(own(record)):
        for bound, step in (("0.1", 3), ("1.0", 5), ("+Inf", 7)) if name.endswith("_bucket") else (("", 7),):
            more = {"le": bound} if bound else {}
            lives = {
                "again": f"0+{step}x9 0+{2 * step}x20",
                "goes": f"4+{step}x9 stale",
                "comes": f"_x10 0+{step}x20",
            }
            for pod, values in lives.items():
                given[series(name, **POD, pod=pod, **labels, **more)] = values
    return given


@pytest.mark.parametrize("record", COUNTERS)
def test_rates_are_the_same_across_restarts(prometheus_tools: PrometheusTools, tmp_path: Path, record: str) -> None:
    """For each pod, and for all together: in the minute of the restart, during the window over it, and after it."""
    given, asked = restarted(record), []
    before = f"rate({own(record)}[5m])"
    after = f"sum without (model_name, engine, finished_reason) (rate({record}[5m]))"
    for minute in (8, 10, 12, 25):
        alive = sum(1 for values in given.values() if minute <= 14 or "stale" not in values)
        alive -= sum(1 for values in given.values() if minute <= 11 and values.startswith("_"))
        asked.append(Asked(f"count({after} == {before})", minute, [({}, alive)]))
        asked.append(Asked(f"{after} != {before}", minute))
        asked.append(Asked(f"sum(rate({record}[5m])) - sum({before})", minute, [({}, 0)]))
    check(prometheus_tools, "vllm.yaml", tmp_path, given, *asked)


@pytest.mark.parametrize("record", [name for name in COUNTERS if name.endswith("_bucket")])
def test_quantiles_are_the_same_across_restarts(prometheus_tools: PrometheusTools, tmp_path: Path, record: str) -> None:
    quantile = "histogram_quantile(0.9, sum by (le) (rate({}[5m])))"
    new, old = quantile.format(record), quantile.format(own(record))
    asked = [Asked(f"{new} - {old}", minute, [({}, 0)]) for minute in (8, 10, 12, 25)]
    positive = [Asked(f"{new} > bool 0", minute, [({}, 1)]) for minute in (8, 10, 12, 25)]
    check(prometheus_tools, "vllm.yaml", tmp_path, restarted(record), *asked, *positive)


def test_a_restart_is_seen_as_one(prometheus_tools: PrometheusTools, tmp_path: Path) -> None:
    """What a sum of counters would not do: a fall of one pod's would be a reset of all."""
    given = restarted("vllm:prompt_tokens_total")
    again = {**POD, "pod": "again"}
    seen = Asked(
        f"resets({series('vllm:prompt_tokens_total', pod='again')}[15m])",
        15,
        [({**again, "model_name": "demo", "engine": "0"}, 1)],
    )
    none = Asked(f"resets({series('vllm:prompt_tokens_total', pod='comes')}[15m]) > 0", 15)
    check(prometheus_tools, "vllm.yaml", tmp_path, given, seen, none)


@pytest.mark.parametrize("record", GAUGES)
def test_gauges_are_the_same(prometheus_tools: PrometheusTools, tmp_path: Path, record: str) -> None:
    (labels,) = selected(own(record))
    given = {series(own(record).partition("{")[0], **POD, pod="a", **labels): "1 2 3 stale"}
    added = {"__name__": record, "model_name": "demo", "engine": "0"}
    known = Asked(record, 2, [({**added, **POD, "pod": "a", **labels}, 3)])
    check(prometheus_tools, "vllm.yaml", tmp_path, given, known, Asked(record, 3))


def test_finished_reasons_are_those_of_choices(prometheus_tools: PrometheusTools, tmp_path: Path) -> None:
    rates = {"stop": 1, "length": 2, "abort": 3, "error": 4}
    given = {series("v4serve_choices_total", **POD, reason=each): f"0+{60 * rate}x9" for each, rate in rates.items()}
    expr = "sum by (finished_reason) (rate(vllm:request_success_total[5m]))"
    wanted = [({"finished_reason": each}, rate) for each, rate in rates.items()]
    check(prometheus_tools, "vllm.yaml", tmp_path, given, Asked(expr, 9, wanted))


def test_promtool_would_tell_a_difference(prometheus_tools: PrometheusTools, tmp_path: Path) -> None:
    given = restarted("vllm:prompt_tokens_total")
    with pytest.raises(CommandFailed, match="exp:"):
        check(
            prometheus_tools,
            "vllm.yaml",
            tmp_path,
            given,
            Asked("sum(rate(vllm:prompt_tokens_total[5m]))", 9, [({}, 0)]),
        )
