"""The lanes of `make test` keep tests together that share an expensive fixture."""

import os

import pytest


def test_the_group_of_a_test_is_known_to_the_lanes(request: pytest.FixtureRequest) -> None:
    """pytest-xdist reads the group from the id of a test. Without it, every test would be distributed on its own."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith("@tests/test_lanes.py")
    (group,) = [mark.args[0] for mark in request.node.iter_markers("xdist_group")]
    assert group == "tests/test_lanes.py"
