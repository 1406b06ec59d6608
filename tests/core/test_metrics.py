"""Buckets and registry that all processes share."""

from prometheus_client import Counter, generate_latest

from v4_core.metrics import SECONDS, TOKENS, process_registry


def test_buckets_grow() -> None:
    for buckets in (SECONDS, TOKENS):
        assert list(buckets) == sorted(set(buckets))
    assert (TOKENS[0], TOKENS[-1]) == (1, 1 << 20)
    assert SECONDS[0] < 0.001
    assert SECONDS[-1] == 300


def test_a_registry_tells_of_the_process_and_nothing_else() -> None:
    registry = process_registry()
    Counter("things", "Things", registry=registry)
    names = {line.split()[2] for line in generate_latest(registry).decode().splitlines() if line.startswith("# TYPE")}
    assert {name for name in names if not name.startswith("process_")} == {"v4serve_process_info", "things_total"}
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= names
