"""Shared parts of every process's metrics: buckets, and a registry with the metrics of the process itself."""

from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, Info, ProcessCollector, disable_created_metrics

# From 0.5 ms (a step of a small batch, a probe) to 5 minutes (a long request).
SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
# Powers of four, from one token to the longest context (2^20 tokens).
TOKENS: Final = tuple(4**power for power in range(11))

# Otherwise every counter and histogram has a second series with its creation time.
disable_created_metrics()  # type: ignore[no-untyped-call]


def process_registry() -> CollectorRegistry:
    """Returns a new registry with the version of v4serve and the process's CPU time, memory and open files."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    info = Info("v4serve_process", "The version of v4serve that this process runs", registry=registry)
    info.info({"version": version("v4serve")})
    return registry
