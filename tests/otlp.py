"""A real OTLP receiver: the collector's gRPC service, which keeps every span that it receives."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

ENVIRONMENT = {"OTEL_BSP_SCHEDULE_DELAY": "50"}  # milliseconds between batches

Span = trace_pb2.Span


@dataclass(frozen=True)
class Received:
    """One span and the resource that exported it."""

    resource: dict[str, Any]
    span: Span

    @property
    def service(self) -> str:
        """Name of the process's service."""
        return str(self.resource["service.name"])

    @property
    def name(self) -> str:
        """Name of the span."""
        return self.span.name

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the span as plain values."""
        return plain(self.span.attributes)

    @property
    def trace(self) -> str:
        """Id of the trace, in hexadecimal."""
        return self.span.trace_id.hex()

    @property
    def id(self) -> str:
        """Id of the span, in hexadecimal."""
        return self.span.span_id.hex()

    @property
    def parent(self) -> str:
        """Id of the parent span, in hexadecimal; empty for a root span."""
        return self.span.parent_span_id.hex()

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Names and attributes of the span's events."""
        return [(event.name, plain(event.attributes)) for event in self.span.events]

    @property
    def failed(self) -> bool:
        """Whether the span's status is an error."""
        return self.span.status.code == trace_pb2.Status.STATUS_CODE_ERROR


@dataclass
class Receiver(pb_grpc.TraceServiceServicer):
    """Keeps the spans that it has received so far."""

    endpoint: str = ""
    requests: int = 0
    _spans: list[Received] = field(default_factory=list)
    _arrived: threading.Condition = field(default_factory=threading.Condition)

    def Export(self, request: pb.ExportTraceServiceRequest, context: object) -> pb.ExportTraceServiceResponse:
        """Receive one export request of a process."""
        with self._arrived:
            self.requests += 1
            for group in request.resource_spans:
                resource = _resource(group.resource)
                self._spans += [Received(resource, span) for scope in group.scope_spans for span in scope.spans]
            self._arrived.notify_all()
        return pb.ExportTraceServiceResponse()

    def until(self, enough: Callable[[Sequence[Received]], bool], seconds: float = 30.0) -> list[Received]:
        """Wait until the received spans are enough, and return them. Raises AssertionError after `seconds`."""
        deadline = time.monotonic() + seconds
        with self._arrived:
            while not enough(self._spans):
                if not self._arrived.wait(deadline - time.monotonic()):
                    found = sorted(f"{one.service} {one.name} {one.attributes}" for one in self._spans)
                    raise AssertionError("\n".join(["not enough spans:", *found]))
            return list(self._spans)


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a receiver on a free local port."""
    server = grpc.server(ThreadPoolExecutor(2))
    one = Receiver()
    pb_grpc.add_TraceServiceServicer_to_server(one, server)  # type: ignore[no-untyped-call]
    one.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield one
    finally:
        server.stop(None).wait()


def plain(attributes: Sequence[KeyValue]) -> dict[str, Any]:
    """Return attributes as a dict of Python values."""
    return {pair.key: _value(pair.value) for pair in attributes}


def _resource(resource: Resource) -> dict[str, Any]:
    return plain(resource.attributes)


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None
