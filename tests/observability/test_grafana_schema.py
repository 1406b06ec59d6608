"""The dashboards are what Grafana's schema says; and the check would tell if they were not."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from charts.dashboards.__main__ import dashboards

from tests.observability.grafana_schema import check

Json = dict[str, Any]


def test_dashboards_have_the_types_of_grafanas_schema(tmp_path: Path) -> None:
    assert check(dashboards(), tmp_path) == []


def _panel(kind: str, dashboard: Json) -> Json:
    found: Json = next(panel for panel in dashboard["panels"] if panel["type"] == kind)
    return found


def _wrong_unit(dashboard: Json) -> None:
    _panel("timeseries", dashboard)["fieldConfig"]["defaults"]["unit"] = 5


def _unknown_option(dashboard: Json) -> None:
    _panel("stat", dashboard)["options"]["grphMode"] = "area"


def _wrong_choice(dashboard: Json) -> None:
    _panel("timeseries", dashboard)["fieldConfig"]["defaults"]["custom"]["showPoints"] = "sometimes"


def _lacking_option(dashboard: Json) -> None:
    del _panel("bargauge", dashboard)["options"]["displayMode"]


def _retired_panel(dashboard: Json) -> None:
    _panel("timeseries", dashboard)["type"] = "graph"


def _unknown_key_of_the_query(dashboard: Json) -> None:
    _panel("timeseries", dashboard)["targets"][0]["query"] = "up"


def _wrong_variable(dashboard: Json) -> None:
    dashboard["templating"]["list"][1]["refresh"] = "always"


BREAKS = {
    "unit": _wrong_unit,
    "grphMode": _unknown_option,
    "showPoints": _wrong_choice,
    "displayMode": _lacking_option,
    "graph": _retired_panel,
    "query": _unknown_key_of_the_query,
    "refresh": _wrong_variable,
}


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    """All at once, since the compiler takes seconds; each break in a dashboard of its own."""
    complaints = check({name: _broken(how) for name, how in BREAKS.items()}, tmp_path)
    told = {line.partition(".ts")[0] for line in complaints}
    assert [name for name in BREAKS if name not in told] == [], complaints


def _broken(how: Callable[[Json], None]) -> Json:
    dashboard = copy.deepcopy(dashboards()["v4serve-overview"])
    how(dashboard)
    return dashboard
