"""Two lanes for `make test` (pytest-xdist, --dist loadgroup), and one thread for each process of them.

Tests that share an expensive session fixture run in one lane, one after the other, and so do the tests of a file. Lanes
take groups in order. The cluster is first, and occupies one lane for most of the time. The control plane is last: if
Kubernetes must be built first, the other lane meanwhile runs tests that do not need it.
"""

import os

import pytest

# One thread per process, since two lanes share two cores. This must be set before torch and numba are imported.
for _library in ("OMP", "MKL", "OPENBLAS", "NUMBA"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

# Expensive session fixture -> (folder of the tests that share it, place in the order).
_SHARED = {
    "cluster": ("tests/cluster", 0),
    "loaded_deployment": ("tests/observability", 1),
    "control_plane": ("tests/cluster", 3),
}
_OTHERS = 2


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put each test into the group of the expensive fixture that it uses, or else into that of its file."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_shared(item) or item.location[0]))
    items.sort(key=lambda item: _SHARED[shared][1] if (shared := _shared(item)) else _OTHERS)


def _shared(item: pytest.Item) -> str:
    """Return the fixture of _SHARED that the test uses, directly or through another fixture, or "" if it uses none."""
    wanted = getattr(item, "fixturenames", ())
    found = (name for name, (folder, _) in _SHARED.items() if name in wanted and item.location[0].startswith(folder))
    return next(found, "")
