"""Spans as a real receiver gets them, and processes that make none."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from tests import otlp
from tests.otlp import ENVIRONMENT, Receiver, Span
from v4_core.errors import ConfigError
from v4_core.tracing import Context, Tracing, tracing, wanted

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = (Context(f"00-{TRACE}-{PARENT}-{flags}", "vendor=1") for flags in ("01", "00"))
ON = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's own."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """That the environment names."""
    with otlp.receiver() as one:
        for name, value in {**ENVIRONMENT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": one.endpoint}.items():
            monkeypatch.setenv(name, value)
        yield one


@pytest.fixture
def spans(receiver: Receiver) -> Iterator[Tracing]:
    """A process that traces."""
    with tracing("v4serve-test") as one:
        assert one is not None
        yield one


def test_a_trace_over_two_spans(receiver: Receiver, spans: Tracing) -> None:
    parent = spans.start("chat demo", SAMPLED, 1000.0, {"gen_ai.request.model": "demo"}, server=True)
    child = spans.start("queue", parent.context, 1000.25)
    child.end(1000.5, "lost", "the worker is gone")
    parent.event("retry", 1000.75, {"attempt": 2})
    parent.set({"gen_ai.response.finish_reasons": ["stop", "length"], "tokens": 3})
    parent.end(1001.5)
    one, two = sorted(receiver.until(lambda all_: len(all_) == 2), key=lambda span: span.name)
    assert (one.service, one.resource["service.version"]) == ("v4serve-test", version("v4serve"))
    assert (one.trace, one.parent) == (TRACE, PARENT)
    assert (two.name, two.trace, two.parent) == ("queue", TRACE, one.id)
    assert (one.span.kind, two.span.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_INTERNAL)
    assert (one.span.start_time_unix_nano, one.span.end_time_unix_nano) == (1_000_000_000_000, 1_001_500_000_000)
    assert two.span.end_time_unix_nano - two.span.start_time_unix_nano == 250_000_000
    assert one.attributes == {
        "gen_ai.request.model": "demo",
        "gen_ai.response.finish_reasons": ["stop", "length"],
        "tokens": 3,
    }
    assert one.events == [("retry", {"attempt": 2})]
    assert one.span.events[0].time_unix_nano == 1_000_750_000_000
    assert (one.failed, two.failed, two.attributes) == (False, True, {"error.type": "lost"})
    assert two.span.status.message == "the worker is gone"
    assert one.span.trace_state == two.span.trace_state == "vendor=1"


@pytest.mark.parametrize("traceparent", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"])
def test_without_a_usable_parent_a_trace_begins(traceparent: str, receiver: Receiver, spans: Tracing) -> None:
    spans.start("chat demo", Context(traceparent), 1.0).end(2.0)
    [one] = receiver.until(bool)
    assert one.parent == ""
    assert one.trace not in ("0" * 32, TRACE)


@pytest.mark.parametrize("header", ["no=pair,a secret", "secret", "=", "a=1,a=2", "a=" + "x" * 9000])
def test_a_clients_broken_header_writes_no_line(header: str, spans: Tracing, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        for context in (Context(SAMPLED.traceparent, header), Context(header, header)):
            assert "secret" not in spans.start("chat demo", context, 1.0).context.tracestate
    assert caplog.records == []


def test_who_asked_for_no_trace_gets_none(receiver: Receiver, spans: Tracing) -> None:
    left_out = spans.start("left out", UNSAMPLED, 1.0)
    assert left_out.context.traceparent.startswith(f"00-{TRACE}-")
    assert left_out.context.traceparent.endswith("-00")
    spans.start("child", left_out.context, 1.0).end(2.0)
    left_out.end(2.0)
    spans.start("seen", SAMPLED, 1.0).end(2.0)
    assert [span.name for span in receiver.until(bool)] == ["seen"]


def test_the_environment_names_the_service_and_samples(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=one,team=blue")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with tracing("v4serve-test") as spans:
        assert spans is not None
        flags = spans.start("dropped", Context(), 1.0).context.traceparent[-2:]
        assert not int(flags, 16) & 1, "children are told"
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    with tracing("v4serve-test") as spans:
        assert spans is not None
        spans.start("kept", Context(), 1.0).end(2.0)
    [span] = receiver.until(bool)
    assert (span.name, span.service, span.resource["team"]) == ("kept", "one", "blue")


def test_the_end_of_the_process_sends_what_waits(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    with tracing("v4serve-test") as spans:
        assert spans is not None
        for i in range(3):
            spans.start(f"{i}", Context(), 1.0).end(2.0)
        assert receiver.requests == 0
    assert len(receiver.until(lambda all_: len(all_) == 3)) == 3


def test_a_receiver_that_is_not_there_ends_no_process_late() -> None:
    script = """
from v4_core.tracing import Context, tracing
with tracing("v4serve-test") as spans:
    spans.start("lost", Context(), 1.0).end(2.0)
"""
    started = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", script], env={**os.environ, **ON}, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    assert time.monotonic() - started < 20, "a retry lasts much longer"


def test_without_an_endpoint_nothing_is_imported() -> None:
    script = """
import sys
from v4_core.tracing import tracing
with tracing("v4serve-test") as spans:
    assert spans is None
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("given", "on"),
    [
        ({}, False),
        (ON, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({**ON, "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({**ON, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ON, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, True),
        ({**ON, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, True),
    ],
)
def test_who_asks_for_traces(given: dict[str, str], on: bool) -> None:
    assert wanted(given) is on


def test_another_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_PROTOCOL is http/protobuf, but traces are sent by grpc"):
        wanted({**ON, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*next(iter(ON.items())))
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install -e '.\[tracing\]' in v4serve's fo"), tracing("v4serve-test"):
        pass


def test_a_value_that_cannot_be_used_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*next(iter(ON.items())))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match=r"OTEL_.* cannot be used: .*'soon'"), tracing("v4serve-test"):
        pass
