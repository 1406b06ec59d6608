"""The trace spans of one leg, one after another, each a child of the router's span. Knows no phase by name.

Does nothing if this process does not trace or the router sent no trace context.
"""

import time

from v4_core.tracing import Attributes, Context, Span, Tracing
from v4_core.v1 import worker_pb2 as pb


class LegSpans:
    """The spans of one leg. All times are values of time.monotonic()."""

    def __init__(self, tracing: Tracing | None, start: pb.Start, worker: str) -> None:
        """`worker` is the address of this worker."""
        self._tracing = tracing if start.traceparent else None
        self._span: Span | None = None
        if self._tracing is not None:
            self._since_1970 = time.time() - time.monotonic()
            self._parent = Context(start.traceparent, start.tracestate)
            self._common: Attributes = {
                "v4serve.request": start.request,
                "v4serve.attempt": start.attempt,
                "v4serve.leg": pb.Phase.Name(start.phase).lower(),
                "v4serve.worker": worker,
            }

    def enter(self, name: str, now: float) -> None:
        """End the present span and start one called `name`."""
        if self._tracing is not None:
            at = self._since_1970 + now
            if self._span is not None:
                self._span.end(at)
            self._span = self._tracing.start(name, self._parent, at, self._common)

    def annotate(self, facts: Attributes) -> None:
        """Add attributes to the present span. Their names get the prefix `v4serve.`."""
        if self._span is not None:
            self._span.set({f"v4serve.{name}": fact for name, fact in facts.items()})

    def end(self, how: str, now: float, failure: str = "") -> None:
        """End the last span, unless it has ended already.

        `how` is finished, cancelled, handed_back, or a reason of failure, whose message is `failure`.
        """
        if self._span is not None:
            self._span.set({"v4serve.end": how})
            self._span.end(self._since_1970 + now, how if failure else "", failure)
            self._span = None
