"""The spans of one leg, as a real receiver gets them."""

import time
from collections.abc import Iterator

import pytest

from tests import otlp
from tests.otlp import Received, Receiver
from v4_core.tracing import NO_CONTEXT, Tracing, tracing
from v4_core.v1 import worker_pb2 as pb
from v4_worker.spans import LegSpans

PARENT = "b7ad6b7169203331"
START = pb.Start(
    request="r1", attempt=2, phase=pb.WHOLE, traceparent=f"00-0af7651916cd43dd8448eb211c80319c-{PARENT}-01"
)
COMMON = {"v4serve.request": "r1", "v4serve.attempt": 2, "v4serve.leg": "whole", "v4serve.worker": "a:1"}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """That the environment names."""
    with otlp.receiver() as one:
        for name, value in {**otlp.ENVIRONMENT, "OTEL_EXPORTER_OTLP_ENDPOINT": one.endpoint}.items():
            monkeypatch.setenv(name, value)
        yield one


@pytest.fixture
def spans(receiver: Receiver) -> Iterator[Tracing]:
    """A process that traces."""
    with tracing("v4serve-test") as one:
        assert one is not None
        yield one


def in_order(receiver: Receiver, count: int) -> list[Received]:
    """So many spans."""
    spans = receiver.until(lambda all_: len(all_) >= count)
    return sorted(spans, key=lambda one: one.span.start_time_unix_nano)


def test_phases_follow_each_other(receiver: Receiver, spans: Tracing) -> None:
    now = time.monotonic()
    phases = LegSpans(spans, START, "a:1")
    phases.enter("queue", now)
    phases.enter("prefill", now + 1)
    phases.annotate({"cached_tokens": 256})
    phases.enter("decode", now + 3)
    phases.end("finished", now + 6)
    phases.end("cancelled", now + 7)
    phases.annotate({"late": 1})
    queue, prefill, decode = in_order(receiver, 3)
    assert [one.name for one in (queue, prefill, decode)] == ["queue", "prefill", "decode"]
    assert {one.parent for one in (queue, prefill, decode)} == {PARENT}
    assert queue.attributes == COMMON
    assert prefill.attributes == COMMON | {"v4serve.cached_tokens": 256}
    assert decode.attributes == COMMON | {"v4serve.end": "finished"}
    assert not decode.failed
    lengths = [(one.span.end_time_unix_nano - one.span.start_time_unix_nano) / 1e9 for one in (queue, prefill, decode)]
    assert lengths == pytest.approx([1, 2, 3], abs=1e-3)
    assert queue.span.start_time_unix_nano / 1e9 == pytest.approx(time.time(), abs=60)


def test_a_failure_says_why(receiver: Receiver, spans: Tracing) -> None:
    phases = LegSpans(spans, START, "a:1")
    phases.enter("transfer", time.monotonic())
    phases.end("transfer", time.monotonic(), "the other side is silent")
    [one] = in_order(receiver, 1)
    assert one.attributes == COMMON | {"v4serve.end": "transfer", "error.type": "transfer"}
    assert (one.failed, one.span.status.message) == (True, "the other side is silent")


def test_where_either_side_does_not_trace_there_is_no_span(receiver: Receiver, spans: Tracing) -> None:
    for phases in (LegSpans(spans, pb.Start(request="r1"), "a:1"), LegSpans(None, START, "a:1")):
        phases.enter("queue", 1.0)
        phases.annotate({"a": 1})
        phases.end("finished", 2.0)
    spans.start("after", NO_CONTEXT, 1.0).end(2.0)
    assert [one.name for one in in_order(receiver, 1)] == ["after"]
