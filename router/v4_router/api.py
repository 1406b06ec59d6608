"""The routes `/v1/completions` and `/v1/chat/completions` as ASGI applications.

The headers are sent with the first token, so a failure before the first token is answered with its own HTTP status; a
later failure is sent as one event of the stream. A request ends at once when its client disconnects, and by the
deadline if the client neither sends nor reads.
"""

import asyncio
import logging
import re
import time
import uuid
from typing import Any, Literal

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from v4_router import request_log
from v4_router.errors import (
    BodyTimeout,
    BodyTooLarge,
    ClientGone,
    DeadlineExceeded,
    InternalError,
    Overloaded,
    RouterError,
    Unavailable,
)
from v4_router.exchange import Exchange
from v4_router.job import Job, Ticket, check_model, prepare
from v4_router.output import Delta
from v4_router.render import DONE, Renderer, Usage, dumps, error_event, route
from v4_router.router import Router
from v4_router.schemas import ChatBody, CompletionBody, parse
from v4_router.spans import RequestSpan
from v4_router.timing import Timing

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 << 20  # a million token ids are 8 MB
_BODY_SECONDS = 60.0  # longest time in which a body must arrive
_ERROR_SECONDS = 1.0  # allowed after the deadline to send the error to a client that may not read
API_ROUTES: dict[str, Literal["completions", "chat"]] = {  # by path
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
}
TENANT = "v4serve.tenant"  # key in the ASGI scope; set if the request carried an API key
_CLIENT_ID = re.compile(r"[\x21-\x7e]{1,128}")


def request_id(headers: Headers) -> str:
    """Returns the client's `x-request-id` if it is usable, else a new id."""
    given = headers.get("x-request-id", "")
    return given if _CLIENT_ID.fullmatch(given) else uuid.uuid4().hex


def error_response(error: RouterError, request_id: str) -> Response:
    """Returns the error's HTTP status with the OpenAI error object as body."""
    headers = {"x-request-id": request_id, **error.headers()}
    return Response(dumps(error.body()), error.status, headers, "application/json")


class ApiRoute:
    """One of the two API routes, as an ASGI application."""

    def __init__(self, router: Router, name: Literal["completions", "chat"]) -> None:
        self._router = router
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        self._router.requests += 1
        try:
            await self._serve(_Answer(self._router, self._name, Request(scope, receive), send))
        finally:
            self._router.requests -= 1

    async def _serve(self, answer: "_Answer") -> None:
        outcome = "cancelled"  # if the process ends first
        try:
            if 0 < (most := self._router.policy.max_requests) < self._router.requests:
                raise Overloaded(f"this router already serves {most} requests, its max_requests: try again later")
            await answer.run()
            outcome = "ok"
        except (ClientGone, ClientDisconnect):
            outcome = "client_gone"
        except RouterError as error:
            outcome = str(error.status)
            await answer.refuse(error)
        except asyncio.CancelledError:  # not raised again: the task ends here, and the server no longer waits for it
            await answer.refuse(Unavailable("the router is stopping: send the request again"))
        except Exception:
            outcome = "500"
            log.exception("request %s failed", answer.request_id)
            await answer.refuse(InternalError(f"internal error: see request {answer.request_id} in the router's log"))
        finally:
            self._router.metrics.ended(self._name, outcome, answer.finishes(), answered=answer.begun)
            answer.end(outcome)


class _Answer:
    """Serves one request."""

    def __init__(self, router: Router, name: str, request: Request, send: Send) -> None:
        self._loop = asyncio.get_running_loop()
        self.request_id = request_id(request.headers)
        self._router = router
        self._name = name
        self._chat = name == "chat"
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._request = request
        self._send = send
        self.begun = False  # whether the headers were sent, together with the first tokens
        self._exchange: Exchange | None = None
        self._status: int | None = None  # the HTTP status that was sent
        self._error: RouterError | None = None  # sent to the client, or to be sent if the client still reads
        self._prompts: list[str] = []  # as text; only if the policy logs prompts
        self._timing = Timing(router.metrics, time.perf_counter)
        self._span = RequestSpan(router.tracing, name, router.config.served_name, request.headers)
        self._deadline = self._loop.time() + router.policy.request_timeout_seconds

    async def run(self) -> None:
        """Reads the body and sends the answer, by the deadline whatever the client does.

        Raises RouterError if the request fails; the caller then sends the error with `refuse`.
        """
        try:
            async with asyncio.timeout_at(min(self._deadline, self._loop.time() + _BODY_SECONDS)):
                raw = await self._read()
        except TimeoutError:
            raise BodyTimeout(
                f"the request's body did not arrive within {_BODY_SECONDS:g} s: send the request again"
            ) from None
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._serve(raw)
        except TimeoutError:
            raise DeadlineExceeded(
                "the request exceeded its deadline: ask for fewer tokens, read the answer faster, or raise "
                "request_timeout_seconds in the router's policy"
            ) from None

    async def refuse(self, error: RouterError) -> None:
        """Sends the error: as the HTTP status, or as an event if a status was already sent.

        Gives up shortly after the deadline if the client does not read.
        """
        self._error = error
        try:
            async with asyncio.timeout_at(max(self._deadline, self._loop.time() + _ERROR_SECONDS)):
                await self._refuse(error)
        except TimeoutError:  # the server closes the connection, since the answer is incomplete
            kind = type(error).__name__  # not the message, which may quote the client and be of any length
            log.info("request %s: the client did not read its error: %d %s", self.request_id, error.status, kind)

    def finishes(self) -> list[str | None]:
        """Returns the finish reason of each choice that was sent to workers; None for a choice that was cut off."""
        return [output.finish for output in self._exchange.outputs] if self._exchange else []

    def end(self, outcome: str) -> None:
        """Writes the request's log line and ends its span."""
        tenant = self._request.scope.get(TENANT, "")
        trace, error = self._span.trace_id, None if outcome == "cancelled" else self._error
        ended = request_log.Ended(self.request_id, self._id, self._name, outcome, tenant, trace, self._prompts, error)
        request_log.write(ended, self._timing.breakdown(), self._exchange)
        self._span.end(ended, self._status, self._timing, self._exchange)

    async def _serve(self, raw: bytes) -> None:
        router = self._router
        body = parse(ChatBody, raw) if self._chat else parse(CompletionBody, raw)
        check_model(body, router.config.served_name)
        ticket = Ticket(self._id, self._deadline, self._request.scope.get(TENANT, ""), self._span.context)
        job = await prepare(body, ticket, router.mode, router.tokenizer, router.fleet.limits())
        self._span.asked(job)
        if router.policy.log_prompts:
            self._prompts = await router.tokenizer.texts([prompt.prompt for prompt in job.prompts])
        exchange = self._exchange = router.exchange(job, self._timing)
        watch = asyncio.create_task(_watch(self._request.receive, exchange))
        try:
            await self._answer(job, exchange)
        finally:
            exchange.close()
            watch.cancel()

    async def _refuse(self, error: RouterError) -> None:
        if self.begun:
            await self._write(error_event(error.body()).encode(), more=False)
        else:
            self._status = error.status
            await error_response(error, self.request_id)(self._request.scope, self._request.receive, self._send)

    async def _read(self) -> bytes:
        body = bytearray()
        async for part in self._request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise BodyTooLarge(f"the body is larger than {MAX_BODY_BYTES >> 20} MiB")
        return bytes(body)

    async def _answer(self, job: Job, exchange: Exchange) -> None:
        identity = (self._id, int(time.time()), self._router.config.served_name)
        renderer = Renderer(job, identity, self._router.logprobs)
        async for deltas in exchange.deltas():
            self._timing.add(deltas)
            if job.stream:
                await self._stream(renderer, deltas, exchange)
            else:
                for delta in deltas:
                    renderer.add(delta)
        usage = self._usage(job, exchange)
        extra = self._extra(exchange)
        if job.stream:
            shown = usage if job.include_usage else None
            last = renderer.last(shown, extra).encode() if shown or extra else b""
            await self._write(last + DONE, more=False)
        else:
            await self._start("application/json", exchange)
            await self._write(renderer.full(usage, extra), more=False)

    async def _stream(self, renderer: Renderer, deltas: list[Delta], exchange: Exchange) -> None:
        if not self.begun:
            await self._start("text/event-stream; charset=utf-8", exchange)
        if events := "".join([renderer.chunk(delta) for delta in deltas]):
            await self._write(events.encode(), more=True)

    async def _start(self, media_type: str, exchange: Exchange) -> None:
        flows = exchange.flows
        cached = sum(flow.cached_tokens for flow in flows)
        way = route([flow.pair for flow in flows], cached, flows[0].reason)
        headers = {"content-type": media_type, "x-request-id": self.request_id, "x-v4serve-route": way}
        if self._router.draining:
            headers["connection"] = "close"  # the client's next request goes to another router
        if media_type.startswith("text/event-stream"):
            headers |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})
        self.begun = True
        self._status = 200

    async def _write(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def _usage(self, job: Job, exchange: Exchange) -> Usage:
        usage = Usage(
            prompt=sum(len(prompt.prompt) // 4 for prompt in job.prompts),
            cached=sum(flow.cached_tokens for flow in exchange.flows),
            completion=sum(output.tokens for output in exchange.outputs),
        )
        metrics = self._router.metrics
        metrics.request_prompt_tokens.observe(usage.prompt)
        metrics.request_generated_tokens.observe(usage.completion)
        self._timing.end()
        return usage

    def _extra(self, exchange: Exchange) -> dict[str, Any]:
        """Returns timings and workers for the answer if the request has the header `x-v4serve-timing: 1`, else {}."""
        if self._request.headers.get("x-v4serve-timing") != "1":
            return {}
        return {"v4serve": {**self._timing.breakdown().body(), "ways": [flow.facts() for flow in exchange.flows]}}


async def _watch(receive: Receive, exchange: Exchange) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.leave()
