"""Draws panels of a dashboard as Grafana's dark theme would: a likeness for documents, no renderer. Asks nobody.

Everything comes from the panel's own JSON: title, unit, colours, steps, stacking, the form of the panel.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

Json = Mapping[str, Any]

BACKGROUND, PANEL, TEXT, FAINT, GRID = "#111217", "#181b1f", "#ccccdc", "#8e8e99", "#2c3036"
_COLORS = {
    "green": "#73bf69",
    "yellow": "#fade2a",
    "orange": "#ff9830",
    "red": "#f2495c",
    "blue": "#5794f2",
    "purple": "#b877d9",
    "text": TEXT,
}
_PALETTE = (
    "#73bf69",
    "#fade2a",
    "#5794f2",
    "#ff9830",
    "#f2495c",
    "#b877d9",
    "#8ab8ff",
    "#ffa6b0",
    "#96d98d",
    "#ffcb7d",
)
_LETTERS_PER_COLUMN = 5.6  # of a legend, by columns of the grid
_MANY = 4  # series of a legend
_SMALL, _TITLE = 6.5, 8.0


@dataclass(frozen=True)
class Series:
    """One line: values at the times of its panel, NaN where there is none."""

    name: str
    values: np.ndarray
    labels: Mapping[str, str]

    @property
    def last(self) -> float:
        """The last value that is a number, else NaN."""
        numbers = self.values[np.isfinite(self.values)]
        return float(numbers[-1]) if numbers.size else math.nan


def draw(axes: Axes, panel: Json, times: np.ndarray, series: Sequence[Series]) -> None:
    """Draw a panel into its place. `times` in seconds."""
    axes.set_facecolor(PANEL)
    _DRAWERS[panel["type"]](axes, panel, times, series)


def number(value: float, unit: str) -> str:
    """A value in a unit of Grafana's."""
    if not math.isfinite(value):
        return "no data"
    if unit == "percentunit":
        return f"{round(100 * value, 1 if value < 0.1 else 0):g} %"
    if unit == "s":
        return _seconds(value)
    if unit in ("Bps", "bytes"):
        return _scaled(value, 1000, "B/s") if unit == "Bps" else _scaled(value, 1024, "iB").replace(" iB", " B")
    suffix = {"reqps": " req/s", "cps": "/s"}.get(unit, unit.removeprefix("suffix:") if ":" in unit else "")
    return f"{value:.3g}{suffix}" if abs(value) < 1000 else f"{value:,.0f}{suffix}"


def _seconds(value: float) -> str:
    for size, name in ((60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    return "0 s" if not value else f"{value:.0e} s"


def _scaled(value: float, base: int, unit: str) -> str:
    power = min(4, int(math.log(abs(value), base))) if abs(value) >= 1 else 0
    return f"{value / base**power:.3g} {('', 'k', 'M', 'G', 'T')[power]}{unit}"


def _lines(axes: Axes, panel: Json, times: np.ndarray, series: Sequence[Series]) -> None:
    defaults, custom = _defaults(panel), _defaults(panel)["custom"]
    colors = _series_colors(panel, series)
    if custom["stacking"]["mode"] == "normal":
        filled = [np.nan_to_num(one.values, posinf=0) for one in series]
        axes.stackplot(times, filled, colors=colors, alpha=0.6, labels=[one.name for one in series])
    else:
        for one, color in zip(series, colors, strict=True):
            axes.plot(times, one.values, color=color, linewidth=1.1, label=one.name)
    if custom["thresholdsStyle"]["mode"] == "dashed":
        for step in defaults["thresholds"]["steps"][1:]:
            if step["value"] <= max(axes.get_ylim()[1], 1):
                axes.axhline(step["value"], color=_COLORS[step["color"]], linestyle="--", linewidth=0.9)
    if custom["scaleDistribution"]["type"] == "log":
        axes.set_yscale("log")
        axes.minorticks_off()
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, defaults["unit"])))
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_ylim(defaults.get("min", axes.get_ylim()[0]), defaults.get("max", axes.get_ylim()[1] or 1))
    axes.set_xlim(times[0], times[-1])
    _time_axis(axes)
    _legend(axes, panel, series)


def _legend(axes: Axes, panel: Json, series: Sequence[Series]) -> None:
    """As many columns as fit; where there are many series, only those that are not zero all the time."""
    handles, names = axes.get_legend_handles_labels()
    if len(series) > _MANY:
        shown = [i for i, one in enumerate(series) if np.nan_to_num(one.values).any()]
        handles, names = [handles[i] for i in shown], [names[i] for i in shown]
    letters = _LETTERS_PER_COLUMN * panel["gridPos"]["w"]
    longest = max((len(name) for name in names), default=0) + 5
    axes.legend(
        handles,
        names,
        loc="upper left",
        bbox_to_anchor=(-0.04, -0.12),
        ncols=max(1, min(len(names), int(letters / longest))),
        fontsize=_SMALL,
        frameon=False,
        labelcolor=TEXT,
        handlelength=1.2,
        columnspacing=1.0,
        borderaxespad=0.2,
        labelspacing=0.2,
    )


def _stat(axes: Axes, panel: Json, times: np.ndarray, series: Sequence[Series]) -> None:
    defaults = _defaults(panel)
    axes.set_axis_off()
    for index, one in enumerate(series):
        color = _step_color(defaults, one.last)
        middle = (index + 0.5) / len(series)
        text = number(one.last, defaults["unit"])
        axes.text(middle, 0.55, text, ha="center", va="center", fontsize=17, color=color, transform=axes.transAxes)
        if panel["options"]["textMode"] == "value_and_name":
            axes.text(middle, 0.88, one.name, ha="center", fontsize=_TITLE, color=TEXT, transform=axes.transAxes)
    values = np.nan_to_num(series[0].values) if series else np.zeros(1)
    if len(series) == 1 and values.max() > 0:
        color = _step_color(defaults, series[0].last)
        axes.fill_between(np.linspace(0, 1, values.size), values / values.max() * 0.25, color=color, alpha=0.3)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def _bars(axes: Axes, panel: Json, times: np.ndarray, series: Sequence[Series]) -> None:
    defaults = _defaults(panel)
    places = np.arange(len(series))[::-1]
    high = defaults.get("max", max((one.last for one in series), default=1))
    axes.barh(places, [high] * len(series), color=GRID, height=0.62)
    values = [max(one.last, 0.004 * high) for one in series]
    axes.barh(places, values, color=[_step_color(defaults, one.last) for one in series], height=0.62)
    for place, one in zip(places, series, strict=True):
        axes.text(high * 1.02, place, number(one.last, defaults["unit"]), va="center", fontsize=_TITLE, color=TEXT)
    axes.set_yticks(places, [one.name for one in series], fontsize=_TITLE, color=TEXT)
    axes.set_xlim(0, high * 1.2)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _heatmap(axes: Axes, panel: Json, times: np.ndarray, series: Sequence[Series]) -> None:
    ordered = sorted(series, key=lambda one: float(one.labels["le"]))
    below = np.vstack([np.zeros(times.size), *(np.nan_to_num(one.values) for one in ordered)])
    cells = np.clip(np.diff(below, axis=0), 0, None)
    axes.pcolormesh(
        times, np.arange(len(ordered) + 1), np.ma.masked_equal(cells[:, :-1], 0), cmap="Oranges_r", alpha=0.9
    )
    used = np.flatnonzero(cells.sum(axis=1))
    axes.set_ylim(max(0, used.min() - 1), min(len(ordered), used.max() + 2))
    unit = panel["options"]["yAxis"]["unit"]
    names = ["∞" if math.isinf(le := float(one.labels["le"])) else number(le, unit) for one in ordered]
    axes.set_yticks(np.arange(len(ordered)) + 1, names, fontsize=_SMALL, color=FAINT)
    _time_axis(axes)


def _table(axes: Axes, panel: Json, times: np.ndarray, series: Sequence[Series]) -> None:
    renamed = panel["transformations"][0]["options"]["renameByName"]
    titles = list(renamed.values())
    rows = [[*(one.labels.get(key, "") for key in renamed if key != "Value")] for one in series]
    colors = [[TEXT] * len(row) for row in rows]
    if "Value" in renamed:
        for row, shades, one in zip(rows, colors, series, strict=True):
            text, color = _mapped(_defaults(panel), one.last)
            row.append(text)
            shades.append(color)
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    step = min(0.13, 0.92 / (len(rows) + 1))
    for line, (row, shades) in enumerate([(titles, [FAINT] * len(titles)), *zip(rows, colors, strict=True)]):
        for column, (text, color) in enumerate(zip(row, shades, strict=True)):
            place = (column / len(titles) + 0.01, 0.96 - line * step)
            axes.text(*place, text, va="top", fontsize=_TITLE - 0.7, color=color, transform=axes.transAxes)


_DRAWERS: Mapping[str, Callable[[Axes, Json, np.ndarray, Sequence[Series]], None]] = {
    "timeseries": _lines,
    "stat": _stat,
    "bargauge": _bars,
    "heatmap": _heatmap,
    "table": _table,
}


def _defaults(panel: Json) -> Json:
    found: Json = panel["fieldConfig"]["defaults"]
    return found


def _series_colors(panel: Json, series: Sequence[Series]) -> list[str]:
    fixed = {
        _pattern(one["matcher"]): _COLORS[value["value"]["fixedColor"]]
        for one in panel["fieldConfig"]["overrides"]
        for value in one["properties"]
        if value["id"] == "color"
    }
    colors = []
    for index, one in enumerate(series):
        found = [color for pattern, color in fixed.items() if pattern.search(one.name)]
        colors.append(found[0] if found else _PALETTE[index % len(_PALETTE)])
    return colors


def _pattern(matcher: Json) -> re.Pattern[str]:
    text = matcher["options"]
    return re.compile(text.strip("/") if matcher["id"] == "byRegexp" else f"^{re.escape(text)}$")


def _step_color(defaults: Json, value: float) -> str:
    reached = [s["color"] for s in defaults["thresholds"]["steps"] if s["value"] is None or value >= s["value"]]
    return _COLORS[reached[-1]]


def _mapped(defaults: Json, value: float) -> tuple[str, str]:
    for mapping in defaults["mappings"]:
        if found := mapping["options"].get(f"{value:g}"):
            return found["text"], _COLORS[found["color"]]
    return number(value, defaults["unit"]), TEXT


def _time_axis(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{int(value) // 60}:{int(value) % 60:02d}"))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.tick_params(labelsize=_SMALL, colors=FAINT, length=0)
    for side in axes.spines.values():
        side.set_color(GRID)
