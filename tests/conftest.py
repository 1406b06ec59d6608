"""Two lanes for `make test` (pytest-xdist, --dist loadgroup), and one thread for each process of them.

Tests that share something costly of the session go to one lane, one after the other; so do the tests of a file. Lanes
take groups in this order, longest first: what runs on the cluster takes one lane for most of the time.
"""

import os

import pytest

# Before torch and numba are imported, here and in every process that a test starts: two lanes have two cores.
for _library in ("OMP", "MKL", "OPENBLAS", "NUMBA"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

_SHARED = ("cluster", "control_plane", "loaded_deployment")  # fixtures of the session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the group of the costly fixture that it asks for, or else of its file."""
    for item in items:
        shared = _shared(item)
        item.add_marker(pytest.mark.xdist_group(_SHARED[shared] if shared < len(_SHARED) else item.location[0]))
    items.sort(key=_shared)


def _shared(item: pytest.Item) -> int:
    """Which of _SHARED the test asks for, directly or by another fixture."""
    wanted = getattr(item, "fixturenames", ())
    return next((place for place, name in enumerate(_SHARED) if name in wanted), len(_SHARED))
