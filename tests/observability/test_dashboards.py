"""Every panel asks something, has data of a deployment under load, and is made by the code beside it."""

import itertools
import math
import re
from collections import defaultdict
from typing import Any

import pytest
from charts.dashboards.__main__ import FOLDER, dashboards, generated

from tests.observability.dashboards import PanelQuery, opening_values, panels, queries, variable_queries
from tests.observability.loaded import Loaded
from tests.observability.promtest import FILES, rules_of

Json = dict[str, Any]
DASHBOARDS = dashboards()

# Panels of which zero is what a good run shows: they must have data, which may be nothing but zeros.
_QUIET = (
    "v4serve-overview: Alerts",
    "v4serve-routing: Probes that failed",
)


def test_generated_files_are_current() -> None:
    stale = [path.name for path, text in generated().items() if not path.exists() or path.read_text("utf-8") != text]
    assert stale == [], "run: make chart"
    assert sorted(FOLDER.iterdir()) == sorted(generated())


def test_uids_never_change() -> None:
    assert list(DASHBOARDS) == ["v4serve-overview", "v4serve-routing", "v4serve-workers", "v4serve-operator"]
    assert all(name == dashboard["uid"] for name, dashboard in DASHBOARDS.items())


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_every_panel_says_what_it_answers_and_in_what_unit(dashboard: Json) -> None:
    for panel in panels(dashboard):
        assert "?" in panel["description"], f"{panel['title']}: a description states the question that it answers"
        unit = panel["options"]["yAxis"] if panel["type"] == "heatmap" else panel["fieldConfig"]["defaults"]
        assert unit["unit"], panel["title"]


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_no_title_or_number_occurs_twice(dashboard: Json) -> None:
    titles = [panel["title"] for panel in dashboard["panels"]]
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(titles)) == len(titles)
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_panels_lie_within_the_grid_and_apart(dashboard: Json) -> None:
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    apart = [
        one["x"] + one["w"] <= other["x"]
        or other["x"] + other["w"] <= one["x"]
        or one["y"] + one["h"] <= other["y"]
        or other["y"] + other["h"] <= one["y"]
        for one, other in itertools.combinations(places, 2)
    ]
    assert all(apart)


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_every_query_follows_the_variables(dashboard: Json) -> None:
    """But what is so for all: the objectives."""
    chosen = re.compile(
        r'namespace=~"\$namespace", deployment=~"\$deployment\|?"|pod=~"\$operator"|vector\(\$link|v4serve:slo_'
    )
    for panel in panels(dashboard):
        for target in panel["targets"]:
            selectors = re.findall(r"\{(.*?)\}", target["expr"]) or [target["expr"]]
            assert all(chosen.search(selector) for selector in selectors), target["expr"]


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_every_variable_is_used(dashboard: Json) -> None:
    text = str(dashboard["panels"]) + str([one["query"] for one in dashboard["templating"]["list"]])
    assert [name for name in opening_values(dashboard) if f"${name}" not in text] == []


def test_what_they_expect_to_be_recorded_is() -> None:
    recorded = {rule["record"] for path in FILES for rule in rules_of(path.name) if "record" in rule}
    asked = {name for one in QUERIES for name in re.findall(r"v4serve:[\w:]+", one.expr)}
    assert {f"v4serve:{name}" for name in ("slo_objective", "inter_token_late:ratio_rate1h")} <= asked
    assert asked <= recorded


def test_dashboards_lead_to_each_other_and_keep_what_was_chosen() -> None:
    for dashboard in DASHBOARDS.values():
        (link,) = dashboard["links"]
        assert link["tags"] == dashboard["tags"] == ["v4serve"]
        assert link["includeVars"]
        assert link["keepTime"]


QUERIES = [one for dashboard in DASHBOARDS.values() for one in queries(dashboard)]


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_every_query_has_data_of_a_loaded_deployment(loaded_deployment: Loaded, query: PanelQuery) -> None:
    """Numbers, and others than zero, at some time of the load."""
    prometheus, start, end = loaded_deployment.prometheus, loaded_deployment.start, loaded_deployment.end
    values = [sample.value for series in prometheus.query_range(query.expr, start, end, 1) for sample in series]
    numbers = [value for value in values if math.isfinite(value)]
    assert numbers, query.expr
    if not str(query).startswith(_QUIET):
        assert any(numbers), f"nothing but zeros: {query.expr}"


@pytest.mark.parametrize("query", [one for d in DASHBOARDS.values() for one in variable_queries(d)], ids=str)
def test_every_variable_finds_values(loaded_deployment: Loaded, query: PanelQuery) -> None:
    found = loaded_deployment.prometheus.query(query.expr, loaded_deployment.end)
    assert any(sample.labels.get(query.legend) for sample in found), query.expr


def _moments(seen: Loaded, panel: str, legend: str, until: float) -> list[dict[str, float]]:
    """A panel's values by their labels, for each second from the start on. A busy machine may miss some."""
    (expr,) = [one.expr for one in QUERIES if one.panel == panel and one.legend == legend]
    moments: dict[float, dict[str, float]] = defaultdict(dict)
    for series in seen.prometheus.query_range(expr, seen.start, until, 1):
        for sample in series:
            moments[sample.time][" ".join(value for _, value in sorted(sample.labels.items()))] = sample.value
    return list(moments.values())


def test_hits_and_losses_add_up_to_all_prompt_tokens(loaded_deployment: Loaded) -> None:
    parts = [one.legend for one in QUERIES if one.panel == "Prompt tokens: hit and lost"]
    shares = [_moments(loaded_deployment, "Prompt tokens: hit and lost", part, loaded_deployment.end) for part in parts]
    assert len(parts) == 5
    assert shares[0]
    assert [sum(part[""] for part in moment) for moment in zip(*shares, strict=True)] == pytest.approx(
        [1] * len(shares[0])
    )


def test_the_hottest_worker_has_at_least_a_fair_share(loaded_deployment: Loaded) -> None:
    outage = loaded_deployment.outage
    fair = _moments(loaded_deployment, "Hottest worker's share", "fair {{role}}", outage)
    assert {"prefill": 0.5, "decode": 0.5} in fair
    hottest = _moments(loaded_deployment, "Hottest worker's share", "hottest {{role}}", outage)
    assert set().union(*hottest) == {"prefill", "decode"}
    assert all(0.5 <= share <= 1 for moment in hottest for share in moment.values())


def test_revisions_beside_each_other_are_seen(loaded_deployment: Loaded) -> None:
    seen = _moments(loaded_deployment, "Ready workers by revision", "{{role}} {{revision}}", loaded_deployment.outage)
    assert {"wanted prefill": 2, "wanted decode": 1, "former decode": 1} in seen
