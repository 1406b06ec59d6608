"""Grafana's JSON for panels: lines, stats, bars, heatmaps and tables. Independent of metrics and positions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]
Steps = Sequence[tuple[float, str]]  # thresholds: the colour for values from this one on

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """One PromQL expression; `legend` may refer to labels as {{label}}."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A panel without its position and id."""

    json: Json
    width: int
    height: int


@dataclass(frozen=True)
class Look:
    """How values are shown."""

    unit: str  # Grafana's id
    low: float | None = 0
    high: float | None = None
    steps: Steps = ()
    base: str = "green"  # colour below the first step
    colors: Mapping[str, str] = field(default_factory=dict)  # by legend or /regular expression/
    log: bool = False  # a logarithmic axis
    names: Mapping[int, tuple[str, str]] = field(default_factory=dict)  # text and colour of a value
    empty: str = "no data"  # shown if the query returns no data


def lines(
    title: str, question: str, look: Look, *queries: Query, stacked: bool = False, width: int = 8, height: int = 8
) -> Panel:
    """Values over time; the thresholds of the look are dashed lines."""
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 50 if stacked else 8,
        "showPoints": "never",
        "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
        "thresholdsStyle": {"mode": "dashed" if look.steps else "off"},
        "scaleDistribution": {"type": "log", "log": 10} if look.log else {"type": "linear"},
    }
    options = {
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    fields = _fields(look, "palette-classic", custom)
    return _panel("timeseries", title, question, (width, height), queries, fields, options)


def stat(title: str, question: str, look: Look, *queries: Query, width: int = 3, height: int = 4) -> Panel:
    """The last value in large type, coloured by the thresholds of the look, over a graph of earlier values."""
    options = {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showPercentChange": False,
        "textMode": "value_and_name" if len(queries) > 1 or "{{" in queries[0].legend else "value",
        "wideLayout": True,
    }
    return _panel("stat", title, question, (width, height), queries, _fields(look, "thresholds"), options)


def bars(title: str, question: str, look: Look, *queries: Query, width: int = 8, height: int = 8) -> Panel:
    """The last values as horizontal bars, coloured by the thresholds of the look."""
    options = {
        "displayMode": "basic",
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": False},
        "maxVizHeight": 300,
        "minVizHeight": 12,
        "minVizWidth": 8,
        "namePlacement": "left",
        "orientation": "horizontal",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showUnfilled": True,
        "sizing": "auto",
        "valueMode": "color",
    }
    return _panel("bargauge", title, question, (width, height), queries, _fields(look, "thresholds"), options)


def heatmap(title: str, question: str, unit: str, expr: str, width: int = 8, height: int = 8) -> Panel:
    """The distribution of a histogram over time; the result of `expr` must have the label le."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "exponent": 0.5,
            "fill": "dark-orange",
            "mode": "scheme",
            "reverse": False,
            "scale": "exponential",
            "scheme": "Oranges",
            "steps": 64,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
    }
    fields = {"defaults": {"custom": {"scaleDistribution": {"type": "linear"}}}, "overrides": []}
    panel = _panel("heatmap", title, question, (width, height), [Query(expr, "{{le}}")], fields, options)
    panel.json["targets"][0]["format"] = "heatmap"
    return panel


def table(
    title: str,
    question: str,
    look: Look,
    expr: str,
    columns: Mapping[str, str],
    value: str,
    width: int = 8,
    height: int = 8,
) -> Panel:
    """A table of current series: `columns` maps labels to column titles; `value` titles the coloured value column.

    If `value` is empty, the value column is hidden.
    """
    names = {**columns, "Value": value}
    order = {name: index for index, name in enumerate(names)}
    hidden = {"Time": True} | ({} if value else {"Value": True})
    organize = {"excludeByName": hidden, "indexByName": order, "renameByName": {k: v for k, v in names.items() if v}}
    options = {"cellHeight": "sm", "frameIndex": 0, "showHeader": True, "sortBy": []}
    fields = _fields(look, "thresholds", {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False})
    if value:
        colored = {"id": "custom.cellOptions", "value": {"type": "color-text"}}
        fields["overrides"].append({"matcher": {"id": "byName", "options": value}, "properties": [colored]})
    panel = _panel("table", title, question, (width, height), [Query(expr, "")], fields, options)
    panel.json["targets"][0] |= {"format": "table", "instant": True, "range": False}
    panel.json["transformations"] = [{"id": "organize", "options": organize}]
    return panel


def _panel(
    kind: Literal["timeseries", "stat", "bargauge", "heatmap", "table"],
    title: str,
    question: str,
    size: tuple[int, int],
    queries: Sequence[Query],
    fields: Json,
    options: Json,
) -> Panel:
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": SOURCE,
            "expr": query.expr,
            "legendFormat": query.legend,
            "range": True,
        }
        for i, query in enumerate(queries)
    ]
    json = {
        "type": kind,
        "title": title,
        "description": question,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": fields,
        "options": options,
    }
    return Panel(json, *size)


def _fields(look: Look, color: str, custom: Json | None = None) -> Json:
    steps = [{"value": value, "color": name} for value, name in ((None, look.base), *look.steps)]
    defaults: Json = {
        "unit": look.unit,
        "color": {"mode": color},
        "noValue": look.empty,
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": _mappings(look),
    }
    defaults |= {key: value for key, value in (("min", look.low), ("max", look.high)) if value is not None}
    defaults |= {"custom": custom} if custom else {}
    overrides = [
        {
            "matcher": {"id": "byRegexp" if name.startswith("/") else "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
        for name, color in look.colors.items()
    ]
    return {"defaults": defaults, "overrides": overrides}


def _mappings(look: Look) -> list[Json]:
    if not look.names:
        return []
    options = {
        str(value): {"text": text, "color": color, "index": index}
        for index, (value, (text, color)) in enumerate(look.names.items())
    }
    return [{"type": "value", "options": options}]
