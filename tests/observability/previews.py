"""Makes docs/images/dashboard-*.png: every dashboard with what a real Prometheus saw of a deployment under load.

python -m tests.observability.previews
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from charts.dashboards.__main__ import dashboards
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from tests.cluster.machine.build import prometheus_tools
from tests.observability.dashboards import fill, opening_values, panels
from tests.observability.drawing import BACKGROUND, FAINT, GRID, PANEL, TEXT, Series, draw
from tests.observability.loaded import Loaded, loaded
from tests.observability.prometheus import PrometheusTools

Json = Mapping[str, Any]

FOLDER = Path(__file__).parents[2] / "docs" / "images"
_RATE_INTERVAL = "10s"  # scrapes come every second
_COLUMN, _LINE = 0.6, 0.27  # inches of the grid's units
_TOP = 0.5  # inches of the title
_DPI = 110


def preview(dashboard: Json, seen: Loaded) -> Figure:
    """The whole dashboard."""
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    width, height = 24 * _COLUMN, lines * _LINE + _TOP
    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor=BACKGROUND)
    figure.text(0.008, 1 - 0.32 / height, dashboard["title"], fontsize=13, color=TEXT)
    times = "minutes and seconds since the first request"
    figure.text(0.992, 1 - 0.32 / height, times, fontsize=9, color=FAINT, horizontalalignment="right")
    for row in (panel for panel in dashboard["panels"] if panel["type"] == "row"):
        y = 1 - (row["gridPos"]["y"] * _LINE + _TOP + 0.2) / height
        figure.text(0.008, y, f"▾ {row['title']}", fontsize=10, color=TEXT)
    for panel in panels(dashboard):
        _place(figure, panel, seen, opening_values(dashboard) | {"__rate_interval": _RATE_INTERVAL})
    return figure


def _place(figure: Figure, panel: Json, seen: Loaded, values: Mapping[str, str]) -> None:
    width, height = figure.get_size_inches()
    place = panel["gridPos"]
    left, right = place["x"] * _COLUMN + 0.04, (place["x"] + place["w"]) * _COLUMN - 0.04
    top, bottom = place["y"] * _LINE + _TOP + 0.03, (place["y"] + place["h"]) * _LINE + _TOP - 0.03
    corner = (left / width, 1 - bottom / height)
    size = ((right - left) / width, (bottom - top) / height)
    box = FancyBboxPatch(
        corner, *size, boxstyle="square,pad=0", facecolor=PANEL, edgecolor=GRID, linewidth=0.8, zorder=-1
    )
    box.set_transform(figure.transFigure)
    figure.add_artist(box)
    title = ((left + 0.09) / width, 1 - (top + 0.19) / height)
    figure.text(*title, panel["title"], fontsize=8, color=TEXT, fontweight="bold")
    times = np.arange(seen.start, seen.peak, 1.0)
    series = list(_series(panel, seen, values, times))
    in_left, in_right, in_top, in_bottom = _margins(panel)
    inner = (
        (left + in_left) / width,
        1 - (bottom - in_bottom) / height,
        (right - left - in_left - in_right) / width,
        (bottom - top - in_top - in_bottom) / height,
    )
    draw(figure.add_axes(inner), panel, times - seen.start, series)


def _margins(panel: Json) -> tuple[float, float, float, float]:
    """Inches at the left, right, top and bottom."""
    return {
        "timeseries": (0.62, 0.12, 0.27, 0.62),
        "heatmap": (0.62, 0.12, 0.27, 0.28),
        "bargauge": (1.3, 0.1, 0.27, 0.1),
    }.get(panel["type"], (0.1, 0.1, 0.27, 0.1))


def _series(panel: Json, seen: Loaded, values: Mapping[str, str], times: np.ndarray) -> Iterator[Series]:
    for target in panel["targets"]:
        expr = fill(target["expr"], values)
        for one in seen.prometheus.query_range(expr, times[0], times[-1], 1.0):
            labels, numbers = one[0].labels, np.full(times.size, np.nan)
            for sample in one:
                numbers[round(sample.time - times[0])] = sample.value
            if not target.get("instant") or np.isfinite(numbers[-1]):
                yield Series(_legend(target["legendFormat"], labels), numbers, labels)


def _legend(template: str, labels: Mapping[str, str]) -> str:
    for name, value in labels.items():
        template = template.replace(f"{{{{{name}}}}}", value)
    return template


def image(name: str) -> Path:
    """Where a dashboard's preview is kept."""
    return FOLDER / f"dashboard-{name.removeprefix('v4serve-')}.png"


def save(figure: Figure, path: Path) -> None:
    """As a PNG of few colours, which is small."""
    figure.savefig(path)
    with Image.open(path) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Load a deployment and draw all dashboards."""
    mpl.rcParams["font.family"] = "DejaVu Sans"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        loaded(PrometheusTools(prometheus_tools()), Path(folder) / "p") as seen,
    ):
        for name, dashboard in dashboards().items():
            save(preview(dashboard, seen), image(name))


if __name__ == "__main__":
    main()
