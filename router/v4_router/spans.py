"""The trace span of a request, with attributes named by OpenTelemetry's semantic conventions.

Does nothing if tracing is off. An error in tracing is logged and never fails a request.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from starlette.datastructures import Headers

from v4_core.tracing import NO_CONTEXT, Attributes, Context, Span, Tracing
from v4_router.exchange import Exchange
from v4_router.job import Job
from v4_router.metrics import faulty
from v4_router.request_log import Ended
from v4_router.timing import Timing

log = logging.getLogger(__name__)

_OPERATIONS = {"chat": "chat", "completions": "text_completion"}


class RequestSpan:
    """The span of a request, from its creation, when the request arrives, until `end`."""

    def __init__(self, tracing: Tracing | None, endpoint: str, model: str, headers: Headers) -> None:
        """`headers`: the request's, whose `traceparent` may name the client's span as the parent."""
        self.context = NO_CONTEXT  # for child spans; empty if tracing is off
        self._span: Span | None = None
        if tracing is None:
            return
        operation = _OPERATIONS[endpoint]
        parent = Context(headers.get("traceparent", ""), ",".join(headers.getlist("tracestate")))
        known: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "v4serve",
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
        }
        with _optional():
            self._span = tracing.start(f"{operation} {model}", parent, time.time(), known, server=True)
            self.context = self._span.context

    @property
    def trace_id(self) -> str:
        """The trace id for the log; empty if tracing is off."""
        return self.context.traceparent.split("-")[1] if self.context.traceparent else ""

    def asked(self, job: Job) -> None:
        """Adds the parameters of the generation."""
        if self._span is None:
            return
        prompt = job.prompts[0]
        with _optional():
            self._span.set(
                {
                    "gen_ai.request.max_tokens": prompt.max_tokens,
                    "gen_ai.request.temperature": prompt.sampling.temperature,
                    "gen_ai.request.top_p": prompt.sampling.top_p,
                }
            )

    def end(self, ended: Ended, status: int | None, timing: Timing, exchange: Exchange | None) -> None:
        """Ends the span. `status` is None if no answer began, `exchange` if the request failed before it was placed."""
        if self._span is not None:
            with _optional():
                self._end(self._span, ended, status, timing, exchange)

    @staticmethod
    def _end(span: Span, ended: Ended, status: int | None, timing: Timing, exchange: Exchange | None) -> None:
        now, clock = time.time(), timing.now()
        times = timing.breakdown().body()
        span.set({f"v4serve.{name}": seconds for name, seconds in times.items() if seconds is not None})
        if exchange is not None:
            span.set({"gen_ai.response.id": ended.id, **_answer(exchange)})
            for mark in (mark for flow in exchange.flows for mark in flow.marks):
                span.event(mark.name, now + mark.at - clock, mark.facts)
        if status is not None:
            span.set({"http.response.status_code": status})
        if ended.outcome != "ok":
            span.set({"error.type": ended.outcome})
        span.end(now, ended.outcome if faulty(ended.outcome) else "", str(ended.error or ""))


@contextmanager
def _optional() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # tracing is optional: no error in it may fail a request
        _log_once(type(error).__name__)


@cache
def _log_once(kind: str) -> None:
    """Logs the error now being handled, once for each type, since further requests would repeat it."""
    log.exception("tracing raised %s: spans of requests are missing or incomplete", kind)


def _answer(exchange: Exchange) -> Attributes:
    outputs = exchange.outputs
    return {
        "gen_ai.response.finish_reasons": [output.finish for output in outputs if output.finish is not None],
        "gen_ai.usage.input_tokens": sum(len(flow.request.prompt) // 4 for flow in exchange.flows),
        "gen_ai.usage.output_tokens": sum(output.tokens for output in outputs),
    }
