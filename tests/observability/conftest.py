"""Prometheus and promtool for all tests of this folder."""

import os
from collections.abc import Iterator

import pytest

from tests.cluster.machine import build
from tests.cluster.machine.errors import PartMissing
from tests.observability.loaded import Loaded, loaded
from tests.observability.prometheus import PrometheusTools


@pytest.fixture(scope="session")
def prometheus_tools() -> PrometheusTools:
    """Skips where Prometheus cannot be had; with CI=true that fails."""
    try:
        return PrometheusTools(build.prometheus_tools())
    except PartMissing as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def loaded_deployment(prometheus_tools: PrometheusTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """One load of a local deployment for all tests."""
    with loaded(prometheus_tools, tmp_path_factory.mktemp("loaded") / "prometheus") as seen:
        yield seen
