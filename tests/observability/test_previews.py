"""What the documents show of dashboards can be drawn again."""

from pathlib import Path

import numpy as np
import pytest
from charts.dashboards.__main__ import dashboards

from tests.observability.dashboards import panels
from tests.observability.drawing import number
from tests.observability.loaded import Loaded
from tests.observability.previews import image, preview, save

_MOST_BYTES = 300_000


@pytest.mark.parametrize("name", dashboards())
def test_every_dashboard_has_a_preview_that_is_small(name: str) -> None:
    assert 20_000 < image(name).stat().st_size < _MOST_BYTES, "run: python -m tests.observability.previews"


def test_every_panel_is_drawn(loaded_deployment: Loaded, tmp_path: Path) -> None:
    dashboard = dashboards()["v4serve-overview"]
    figure = preview(dashboard, loaded_deployment)
    assert len(figure.axes) == len(list(panels(dashboard)))
    assert all(axes.lines or axes.collections or axes.patches or axes.texts for axes in figure.axes)
    save(figure, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size < _MOST_BYTES


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.5, "percentunit", "50 %"),
        (0.0123, "percentunit", "1.2 %"),
        (0.0042, "s", "4.2 ms"),
        (90, "s", "1.5 min"),
        (3.1e9, "Bps", "3.1 GB/s"),
        (512 << 20, "bytes", "512 MiB"),
        (12345, "suffix: tok/s", "12,345 tok/s"),
        (7, "short", "7"),
        (np.nan, "short", "no data"),
    ],
)
def test_values_read_as_in_grafana(value: float, unit: str, text: str) -> None:
    assert number(value, unit) == text
