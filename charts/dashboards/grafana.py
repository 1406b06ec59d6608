"""Grafana's JSON for dashboards: rows of panels, variables and links. Independent of metrics and panel types.

The JSON uses the classic schema, which Grafana 11 and later can import. Panel positions are computed: panels fill a row
from left to right and continue on the next line.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from charts.dashboards.panels import SOURCE, Json, Panel

TAG = "v4serve"  # set on every dashboard; the links between dashboards select by it
_SCHEMA_VERSION = 41
_WIDTH = 24  # columns of the grid


@dataclass(frozen=True)
class Row:
    """A titled group of panels."""

    title: str
    panels: tuple[Panel, ...]


def row(title: str, *panels: Panel) -> Row:
    """A row of panels under a title."""
    return Row(title, panels)


def typed(name: str, label: str, default: str) -> Json:
    """A variable with a text box."""
    return {
        "name": name,
        "label": label,
        "type": "textbox",
        "query": default,
        "current": {"selected": True, "text": default, "value": default},
        "options": [{"selected": True, "text": default, "value": default}],
    }


def found(name: str, label: str, series: str, of_label: str, every: str = ".*") -> Json:
    """A variable whose values are the values of a label; several can be selected, and initially all are.

    `every` is the regular expression that the query uses when all are selected.
    """
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({series}, {of_label})", "refId": name},
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": every,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def dashboard(name: str, title: str, description: str, variables: Sequence[Json], rows: Sequence[Row]) -> Json:
    """A complete dashboard. Its uid is `name`, which must never change."""
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    link = {
        "title": "v4serve",
        "type": "dashboards",
        "tags": [TAG],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }
    return {
        "uid": name,
        "title": title,
        "description": description,
        "tags": [TAG],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,  # shared crosshair
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [link],
        "templating": {"list": [source, *variables]},
        "annotations": {"list": []},
        "panels": _placed(rows),
    }


def _placed(rows: Sequence[Row]) -> list[Json]:
    panels: list[Json] = []
    y = 0
    for one in rows:
        place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": one.title,
                "collapsed": False,
                "gridPos": place,
                "panels": [],
            }
        )
        x, y, below = 0, y + 1, y + 1
        for panel in one.panels:
            if x + panel.width > _WIDTH:
                x, y = 0, below
            place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            panels.append({"id": len(panels) + 1, **panel.json, "gridPos": place})
            x, below = x + panel.width, max(below, y + panel.height)
        y = below
    return panels
