"""The spans of one leg: phases one behind the other, each a child of the router's span. Knows no kind of leg.

Nothing is done where this process does not trace or the router does not.
"""

import time

from v4_core.tracing import Attributes, Context, Span, Tracing
from v4_core.v1 import worker_pb2 as pb


class Phases:
    """What a leg does, from its beginning on. Times are those of time.monotonic()."""

    def __init__(self, tracing: Tracing | None, start: pb.Start, worker: str) -> None:
        """`worker`: its address."""
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
        """The leg is in this phase, and no longer in the one before."""
        if self._tracing is not None:
            at = self._since_1970 + now
            if self._span is not None:
                self._span.end(at)
            self._span = self._tracing.start(name, self._parent, at, self._common)

    def note(self, facts: Attributes) -> None:
        """Add facts to the present phase; their names are without `v4serve.`."""
        if self._span is not None:
            self._span.set({f"v4serve.{name}": fact for name, fact in facts.items()})

    def end(self, how: str, now: float, failure: str = "") -> None:
        """The leg ends, if it did not before: finished, cancelled, handed_back, or for a reason with its `failure`."""
        if self._span is not None:
            self._span.set({"v4serve.end": how})
            self._span.end(self._since_1970 + now, how if failure else "", failure)
            self._span = None
