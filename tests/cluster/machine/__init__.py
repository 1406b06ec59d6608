"""A real Kubernetes for tests: binaries got once (build.py), one node on this machine (local.py), gone without a trace.

Tests use it by the fixture `cluster` (cluster.py has its methods). For a developer: `python -m tests.cluster.machine`.
Needs root and Debian 12, or any cluster whose kubeconfig V4SERVE_TEST_KUBECONFIG names (external.py).
"""
