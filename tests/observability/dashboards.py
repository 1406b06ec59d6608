"""What a dashboard asks Prometheus, as Grafana would ask it. Knows no panel by name, and needs no Grafana."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]

RATE_INTERVAL = "1m"  # what Grafana makes of $__rate_interval for scrapes every 15 s
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_LABEL_VALUES = re.compile(r"label_values\((.*), (\w+)\)")


@dataclass(frozen=True)
class PanelQuery:
    """One query of a panel, its variables filled."""

    dashboard: str  # uid
    panel: str  # title
    legend: str
    expr: str

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}: {self.legend}"


def queries(dashboard: Json, *, rate_interval: str = RATE_INTERVAL, **chosen: str) -> list[PanelQuery]:
    """Every query of every panel. A variable has the value of `chosen`, else the one that the dashboard opens with.

    Raises KeyError for a variable that the dashboard has not.
    """
    values = opening_values(dashboard) | {"__rate_interval": rate_interval} | chosen
    return [
        PanelQuery(dashboard["uid"], panel["title"], target["legendFormat"], fill(target["expr"], values))
        for panel in panels(dashboard)
        for target in panel["targets"]
    ]


def variable_queries(dashboard: Json) -> list[PanelQuery]:
    """For every variable that is looked up, a query whose samples have its values in the label `legend`."""
    values = opening_values(dashboard)
    found = []
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            series, label = _LABEL_VALUES.fullmatch(variable["query"]["query"]).groups()  # type: ignore[union-attr]
            expr = f"count by ({label}) ({fill(series, values)})"
            found.append(PanelQuery(dashboard["uid"], f"${variable['name']}", label, expr))
    return found


def panels(dashboard: Json) -> Iterator[Json]:
    """Those that ask, rows left out."""
    return (panel for panel in dashboard["panels"] if panel["type"] != "row")


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with its variables replaced. Raises KeyError."""
    return _VARIABLE.sub(lambda found: values[found[1]], text)


def opening_values(dashboard: Json) -> dict[str, str]:
    """What the variables stand for when the dashboard is opened: all of them where all may be chosen."""
    return {
        variable["name"]: variable["allValue"] if variable.get("includeAll") else variable["current"]["value"]
        for variable in dashboard["templating"]["list"]
        if variable["type"] != "datasource"
    }
