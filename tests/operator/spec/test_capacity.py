from typing import Any

import pytest

from tests.operator.wrong import manifest
from v4_core.errors import ConfigError
from v4_core.profiles import PROFILES
from v4_core.settings import load
from v4_core.weight_sizes import weight_bytes
from v4_engine.loading import load_engine
from v4_engine.options import EngineOptions
from v4_models import DEMO_MODEL
from v4_operator.spec.accelerators import ACCELERATORS
from v4_operator.spec.capacity import Capacity, cache_bytes, device_memory, planned, weights_of_device
from v4_operator.spec.check import check
from v4_operator.spec.parse import parse
from v4_operator.spec.v4deployment import V4Deployment
from v4_worker.engine_thread import load_of


def deployment(**spec: Any) -> V4Deployment:
    """Of the demo model unless it says so."""
    return parse(manifest(spec))


def memory(amount: str) -> dict[str, Any]:
    """A pool whose containers request so much."""
    return {"resources": {"requests": {"memory": amount}}}


@pytest.mark.parametrize(
    ("cache", "amount"),
    [
        ({}, "96Mi"),
        ({"memoryPercent": 80, "maxSequences": 3}, "40Mi"),
        ({"format": "bf16", "maxSequences": 8}, "64Mi"),
        ({"format": "fp64", "indexFormat": "fp32"}, "128M"),
        ({"slots": 77}, "64Mi"),
    ],
)
def test_a_worker_reports_what_was_planned(cache: dict[str, Any], amount: str) -> None:
    v4d = deployment(cache=cache, decode=memory(amount))
    wanted = v4d.spec.cache
    options = load(
        EngineOptions,
        None,
        {
            "device": "cpu",
            "format": wanted.format,
            "index_format": wanted.index_format,
            "max_sequences": wanted.max_sequences,
            "slots": wanted.slots,
            "memory": "auto" if wanted.slots else cache_bytes(v4d.spec, v4d.spec.decode),
        },
    )
    reported = load_of(load_engine(DEMO_MODEL, options).engine)
    assert planned(v4d, "decode") == Capacity(reported.slots_total, reported.slots_total * 256)


@pytest.mark.parametrize("context", [0, 300, 8192])
def test_the_engine_starts_with_the_least_memory_and_not_with_less(context: int) -> None:
    def wanted(mib: int) -> V4Deployment:
        model = {"demo": {}, "contextLength": context} if context else {"demo": {}}
        return deployment(model=model, cache={"memoryPercent": 20}, decode=memory(f"{mib}Mi"))

    def start(mib: int) -> None:
        spec = wanted(mib).spec
        size = cache_bytes(spec, spec.decode)
        load_engine(DEMO_MODEL, load(EngineOptions, None, {"device": "cpu", "memory": size, "max_model_len": context}))

    least = next(mib for mib in range(1, 1000) if not check(wanted(mib), (1, 36)))
    start(least)
    with pytest.raises(ConfigError, match="raise memory"):
        start(least - 1)


def test_memory_of_a_container() -> None:
    def of(resources: dict[str, Any]) -> int:
        return device_memory(deployment(decode={"resources": resources}).spec.decode)

    assert of({}) == 2 << 30
    assert of({"requests": {"cpu": "2"}}) == 2 << 30
    assert of({"limits": {"memory": "5Gi"}}) == 5 << 30
    assert of({"limits": {"memory": "5Gi"}, "requests": {"memory": 1000}}) == 1000


def test_memory_of_a_device() -> None:
    def of(**accelerator: Any) -> int:
        return device_memory(deployment(decode={"accelerator": accelerator}).spec.decode)

    assert of(type="h200", count=8) == ACCELERATORS["h200"].memory_bytes
    assert of(type="h200", count=8, memory="70Gi") == 70 << 30


def test_devices_of_a_tensor_group_hold_one_cache_and_groups_have_their_own() -> None:
    def of(tensor: int, data: int) -> int:
        pool = {"accelerator": {"type": "h200", "count": tensor * data}, "parallel": {"tensor": tensor, "data": data}}
        capacity = planned(deployment(model={"pvc": {"claimName": "w"}, "profile": "flash"}, decode=pool), "decode")
        assert capacity
        return capacity.slots

    assert of(8, 1) == of(1, 1)
    assert of(1, 8) == of(2, 8) == 8 * of(1, 1)


def test_weights_of_a_device() -> None:
    spec = deployment(model={"pvc": {"claimName": "w"}, "profile": "flash"}).spec
    weights = weight_bytes(PROFILES["flash"])
    assert weights_of_device(spec, 1, 1) == weights.total
    assert weights_of_device(spec, 8, 1) == pytest.approx(weights.total / 8, abs=2)
    assert weights_of_device(spec, 1, 8) == pytest.approx(weights.experts / 8 + weights.rest, abs=2)


def test_nothing_is_planned_of_an_unknown_model() -> None:
    host = {"hostPath": {"path": "/m"}}
    assert planned(deployment(model=host), "prefill") is None
    assert weights_of_device(deployment(model=host).spec, 1, 1) == 0


def test_no_memory_is_no_capacity_and_no_error() -> None:
    assert planned(deployment(prefill=memory("1Ki")), "prefill") == Capacity(0, 0)
