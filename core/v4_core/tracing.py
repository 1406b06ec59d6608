"""Exports a process's spans by OTLP over gRPC if OpenTelemetry's environment variables say so. Knows no request.

OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT enables tracing; without them OpenTelemetry is not
imported. The OpenTelemetry SDK reads all other settings from its own variables: names, headers, certificates, sampling,
batches. The caller passes the times of spans in seconds since 1970, so this module needs no clock.
"""

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from v4_core.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_FLUSH_SECONDS = 2.0  # at the end of the process, for a receiver that does not answer


@dataclass(frozen=True)
class Context:
    """The two headers of W3C Trace Context by which children refer to a span; empty = no parent."""

    traceparent: str = ""
    tracestate: str = ""


NO_CONTEXT: Final = Context()


class Span:
    """A span. It ends once; attributes and events that are added later are lost."""

    def __init__(self, span: "trace.Span", context: Context) -> None:
        self.context = context
        self._span = span

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""
        self._span.set_attributes(attributes)

    def event(self, name: str, at: float, attributes: Attributes) -> None:
        """Adds an event."""
        self._span.add_event(name, attributes, _nanoseconds(at))

    def end(self, at: float, error: str = "", message: str = "") -> None:
        """Ends the span. `error` is the kind of the failure, a value of low cardinality; empty = no failure."""
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR, message))
        self._span.end(_nanoseconds(at))


class Tracing:
    """Creates spans and exports them from a thread of its own."""

    def __init__(self, service: str) -> None:
        """Call `tracing` instead. Raises ModuleNotFoundError without OpenTelemetry, and ValueError if one of its
        variables is invalid."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        # It logs a warning with the text of the headers for each request with invalid trace headers.
        logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
        self._provider = _provider(service)
        self._tracer = self._provider.get_tracer("v4serve", version("v4serve"))
        self._propagator = TraceContextTextMapPropagator()

    def start(
        self, name: str, parent: Context, at: float, attributes: Attributes | None = None, *, server: bool = False
    ) -> Span:
        """Starts a child of `parent`, or the first span of a trace. `server`: it serves another program's request."""
        from opentelemetry.trace import SpanKind, set_span_in_context  # noqa: PLC0415

        headers = {"traceparent": parent.traceparent, "tracestate": parent.tracestate}
        span = self._tracer.start_span(
            name,
            self._propagator.extract({name: value for name, value in headers.items() if value}),
            SpanKind.SERVER if server else SpanKind.INTERNAL,
            attributes,
            start_time=_nanoseconds(at),
        )
        headers_of_span: dict[str, str] = {}
        self._propagator.inject(headers_of_span, set_span_in_context(span))
        return Span(span, Context(**headers_of_span))

    def close(self) -> None:
        """Exports the remaining spans, for at most 2 s."""
        closing = threading.Thread(target=self._provider.shutdown, name="tracing-end", daemon=True)
        closing.start()
        closing.join(_FLUSH_SECONDS)


@contextmanager
def tracing(service: str) -> Iterator[Tracing | None]:
    """Yields the process's tracing and closes it at the end; yields None if the environment does not enable it.

    `service` is the service's name unless the environment sets another one. Raises ConfigError.
    """
    if not wanted(os.environ):
        yield None
        return
    made = _made(service)
    try:
        yield made
    finally:
        made.close()


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment enables tracing. Raises ConfigError if it demands a protocol other than gRPC."""
    endpoint = next((name for name in _ENDPOINTS if environment.get(name)), None)
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if endpoint is None or disabled or environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return False
    for name in _PROTOCOLS:
        if protocol := environment.get(name):
            if protocol != "grpc":
                raise ConfigError(
                    f"{name} is {protocol}, but traces are sent by grpc alone: set it to grpc, and {endpoint} to the "
                    "receiver's address for gRPC, which often has port 4317"
                )
            break
    return True


def _made(service: str) -> Tracing:
    try:
        return Tracing(service)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the environment asks for traces ({' or '.join(_ENDPOINTS)}), which needs the package {error.name!r}: "
            "run python -m pip install -e '.[tracing]' in v4serve's folder, or unset the variable"
        ) from error
    except ValueError as error:
        raise ConfigError(f"a variable OTEL_... of the environment cannot be used: {error}") from error


def _provider(service: str) -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    named = {"service.name": service, "service.version": version("v4serve")}
    resource = Resource.create({**named, **OTELResourceDetector().detect().attributes})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
