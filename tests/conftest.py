"""Two lanes for `make test` (pytest-xdist, --dist loadgroup), and one thread for each process of them.

Tests that share something costly of the session go to one lane, one after the other; so do the tests of a file. Lanes
take groups in order. The cluster comes first and has one lane to itself for most of the time. The control plane comes
last: where Kubernetes is not built yet, the other lane tests what needs none meanwhile.
"""

import os

import pytest

# Before torch and numba are imported, here and in every process that a test starts: two lanes have two cores.
for _library in ("OMP", "MKL", "OPENBLAS", "NUMBA"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

# Fixture of the session -> the folder of the tests that share it, and its place in order.
_SHARED = {
    "cluster": ("tests/cluster", 0),
    "loaded_deployment": ("tests/observability", 1),
    "control_plane": ("tests/cluster", 3),
}
_OTHERS = 2


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the group of the costly fixture that it asks for, or else of its file."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_shared(item) or item.location[0]))
    items.sort(key=lambda item: _SHARED[shared][1] if (shared := _shared(item)) else _OTHERS)


def _shared(item: pytest.Item) -> str:
    """The fixture of _SHARED that the test asks for, directly or by another one; empty if it asks for none."""
    wanted = getattr(item, "fixturenames", ())
    found = (name for name, (folder, _) in _SHARED.items() if name in wanted and item.location[0].startswith(folder))
    return next(found, "")
