"""Grafana's JSON for whole dashboards: rows of panels, variables, links. Knows no metric and no kind of panel.

The form is the classic one, which every Grafana since 11 imports. A panel's place is computed: panels fill a row from
left to right and go on below it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from charts.dashboards.panels import SOURCE, Json, Panel

TAG = "v4serve"  # of every dashboard; the links between them go by it
_SCHEMA_VERSION = 41
_WIDTH = 24  # of the grid


@dataclass(frozen=True)
class Row:
    """A titled group of panels."""

    title: str
    panels: tuple[Panel, ...]


def row(title: str, *panels: Panel) -> Row:
    """Panels under a title."""
    return Row(title, panels)


def typed(name: str, label: str, default: str) -> Json:
    """A variable that the reader types in."""
    return {
        "name": name,
        "label": label,
        "type": "textbox",
        "query": default,
        "current": {"selected": True, "text": default, "value": default},
        "options": [{"selected": True, "text": default, "value": default}],
    }


def found(name: str, label: str, series: str, of_label: str, every: str = ".*") -> Json:
    """A variable whose values are those of a label of some series; several may be chosen, and all are at first.

    `every` is the regular expression that stands for all of them.
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
    """A whole dashboard; its uid is `name`, and must never change."""
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
        "graphTooltip": 1,  # one crosshair in all panels
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
