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

_SHARED = {"cluster": 0, "loaded_deployment": 1, "control_plane": 3}  # fixture of the session -> its place in order
_OTHERS = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the group of the costly fixture that it asks for, or else of its file."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_shared(item) or item.location[0]))
    items.sort(key=lambda item: _SHARED.get(_shared(item), _OTHERS))


def _shared(item: pytest.Item) -> str:
    """The fixture of _SHARED that the test asks for, directly or by another one; empty if it asks for none."""
    wanted = getattr(item, "fixturenames", ())
    return next((name for name in _SHARED if name in wanted), "")
