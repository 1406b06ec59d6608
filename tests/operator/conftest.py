"""The small API server of tests/kube, for tests of the operator's I/O."""

from tests.kube.conftest import api, served, server, until

__all__ = ["api", "served", "server", "until"]
