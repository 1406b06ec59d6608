"""Helm comes with the tools of the test cluster."""

import os

import pytest

from tests.chart.helm import Helm
from tests.cluster.machine.build import client_tools
from tests.cluster.machine.errors import ClusterError


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Skips where Helm cannot be had; with CI=true that fails."""
    try:
        tools = client_tools()
    except (ClusterError, OSError) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no helm: {error}")
    return Helm(tools / "helm", tmp_path_factory.mktemp("helm"))
