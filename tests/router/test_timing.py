"""The times of a request."""

from prometheus_client import CollectorRegistry

from v4_router.metrics import Metrics
from v4_router.output import Delta
from v4_router.pace import Pace
from v4_router.placement import Placement
from v4_router.timing import Breakdown, PromptTiming, Timing


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def timing() -> tuple[Timing, Metrics, Clock]:
    metrics, clock = Metrics(), Clock()
    return Timing(metrics, clock), metrics, clock


def delta(count: int = 1, choice: int = 0) -> Delta:
    return Delta(choice, "", "", [7] * count)


def value(registry: CollectorRegistry, name: str) -> float:
    return registry.get_sample_value(f"v4serve_{name}") or 0.0


def seen(metrics: Metrics, name: str) -> tuple[float, float]:
    """Returns the count and the sum of a histogram."""
    return value(metrics.registry, f"{name}_count"), value(metrics.registry, f"{name}_sum")


def test_a_request_from_arrival_to_its_last_token() -> None:
    timing_, metrics, clock = timing()
    clock.now += 1.0
    timing_.began()
    clock.now += 2.0
    timing_.add([delta()])
    clock.now += 3.0
    timing_.add([delta(2)])
    clock.now += 0.5
    timing_.end()
    assert timing_.breakdown() == Breakdown(
        ttft_seconds=3.0, itl_seconds=1.5, queue_seconds=1.0, prefill_seconds=2.0, decode_seconds=3.0, total_seconds=6.5
    )
    for name, expected in {
        "request_queue_seconds": 1.0,
        "request_prefill_seconds": 2.0,
        "request_decode_seconds": 3.0,
        "time_to_first_token_seconds": 3.0,
        "inter_token_latency_seconds": 1.5,
        "request_duration_seconds": 6.5,
    }.items():
        assert seen(metrics, name) == (1, expected), name
    assert value(metrics.registry, "generated_tokens_total") == 3


def test_the_first_worker_that_begins_counts() -> None:
    timing_, metrics, clock = timing()
    for _ in range(3):
        clock.now += 1.0
        timing_.began()
    clock.now += 1.0
    timing_.add([delta()])
    assert timing_.breakdown().queue_seconds == 1.0
    assert timing_.breakdown().prefill_seconds == 3.0
    assert seen(metrics, "request_queue_seconds") == (1, 1.0)


def test_a_request_without_tokens() -> None:
    timing_, metrics, clock = timing()
    clock.now += 4.0
    assert timing_.breakdown() == Breakdown(None, None, None, None, None, 4.0)
    timing_.began()
    clock.now += 1.0
    assert timing_.breakdown() == Breakdown(None, None, 4.0, None, None, 5.0)
    assert seen(metrics, "request_prefill_seconds") == (0, 0)


def test_tokens_are_counted_when_received_and_an_end_without_tokens_is_no_token() -> None:
    timing_, metrics, clock = timing()
    timing_.began()
    timing_.add([Delta(0, "", "", [], finish="stop")])
    assert timing_.breakdown().ttft_seconds is None
    timing_.add([delta(3), delta(2, choice=1)])
    assert value(metrics.registry, "generated_tokens_total") == 5
    clock.now += 1.0
    timing_.add([delta(1, choice=1)])
    assert value(metrics.registry, "generated_tokens_total") == 6
    assert seen(metrics, "inter_token_latency_seconds") == (1, 1.0)


def test_a_single_token_takes_no_decode() -> None:
    timing_, metrics, clock = timing()
    timing_.add([delta()])
    clock.now += 1.0
    timing_.end()
    assert timing_.breakdown().decode_seconds == 0.0
    assert seen(metrics, "request_decode_seconds") == (1, 0.0)
    assert timing_.breakdown().prefill_seconds is None, "nobody said when a worker began"


def test_a_prompt_is_counted_when_the_first_worker_begins() -> None:
    timing_, metrics, clock = timing()
    prompt = PromptTiming(timing_, 1000)
    clock.now += 2.0
    for cached in (256, 512):
        prompt.began(cached)
        clock.now += 1.0
    assert value(metrics.registry, "prompt_tokens_total") == 1000
    assert value(metrics.registry, "cached_prompt_tokens_total") == 256
    assert timing_.breakdown().queue_seconds == 2.0


def test_a_placement_is_counted_and_its_first_token_is_compared_with_the_estimate() -> None:
    timing_, metrics, clock = timing()
    prompt, pace = PromptTiming(timing_, 1000), Pace()
    placement = Placement("P", "D", "prefix", queued_tokens=500, cached_tokens=256, elsewhere_tokens=512)
    prompt.placed("prefix", placement)
    assert metrics.registry.get_sample_value("v4serve_placements_total", {"reason": "prefix"}) == 1
    assert value(metrics.registry, "prefix_elsewhere_tokens_total") == 512
    awaited = prompt.sent(placement, 1000, pace)
    clock.now += 2.0
    prompt.first_token(awaited)
    assert seen(metrics, "estimated_time_to_first_token_seconds") == (0, 0), "nothing was known of the worker"
    awaited = prompt.sent(placement, 1000, pace)
    clock.now += 3.0
    prompt.first_token(awaited)
    count, expected = seen(metrics, "estimated_time_to_first_token_seconds")
    assert (count, round(expected, 9)) == (1, 2.0)
    count, error = seen(metrics, "time_to_first_token_error_ratio")
    assert (count, round(error, 9)) == (1, 1.5)
