"""`/v1/completions` and `/v1/chat/completions` as ASGI endpoints: one client, one body, one answer or one error.

Headers go out with the first token, so every failure before it is a true status; later ones are one event. A client
that leaves, at whatever moment, ends its request at once; one that neither sends nor reads ends it by the deadline.
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
_BODY_SECONDS = 60.0  # for a body to arrive
_LAST_WORD_SECONDS = 1.0  # beyond the deadline, to write why an answer ends to a client that may not read
API_ROUTES: dict[str, Literal["completions", "chat"]] = {  # by path
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
}
TENANT = "v4serve.tenant"  # in the scope of a request that came with a key
_CLIENT_ID = re.compile(r"[\x21-\x7e]{1,128}")


def request_id(headers: Headers) -> str:
    """The client's own, if it can be used, or a new one."""
    given = headers.get("x-request-id", "")
    return given if _CLIENT_ID.fullmatch(given) else uuid.uuid4().hex


def error_response(error: RouterError, request_id: str) -> Response:
    """A status with the OpenAI error object."""
    headers = {"x-request-id": request_id, **error.headers()}
    return Response(dumps(error.body()), error.status, headers, "application/json")


class ApiRoute:
    """One of the two interfaces."""

    def __init__(self, router: Router, name: Literal["completions", "chat"]) -> None:
        self._router = router
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        self._router.requests += 1
        try:
            await self._serve(_Answer(self._router, self._name, Request(scope, receive), send))
        finally:
            self._router.requests -= 1

    async def _serve(self, answer: "_Answer") -> None:
        outcome = "cancelled"  # by the end of the process
        try:
            if 0 < self._router.policy.max_requests < self._router.requests:
                raise Overloaded("this router has as many requests as it may take: try again later")
            await answer.give()
            outcome = "ok"
        except (ClientGone, ClientDisconnect):
            outcome = "client_gone"
        except RouterError as error:
            outcome = str(error.status)
            await answer.refuse(error)
        except asyncio.CancelledError:  # the end of this task in any case: the server stops and waits no longer
            await answer.refuse(Unavailable("the router is stopping: send the request again"))
        except Exception:
            outcome = "500"
            log.exception("request %s failed", answer.request_id)
            await answer.refuse(InternalError(f"internal error: look for request {answer.request_id} in the log"))
        finally:
            self._router.metrics.ended(self._name, outcome, answer.finishes(), answered=answer.begun)
            answer.end(outcome)


class _Answer:
    """The serving of one request."""

    def __init__(self, router: Router, name: str, request: Request, send: Send) -> None:
        self._loop = asyncio.get_running_loop()
        self.request_id = request_id(request.headers)
        self._router = router
        self._name = name
        self._chat = name == "chat"
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._request = request
        self._send = send
        self.begun = False  # the headers were sent, and with them tokens
        self._exchange: Exchange | None = None
        self._status: int | None = None  # that was sent
        self._error: RouterError | None = None  # that the client was, or was to be, told
        self._prompts: list[str] = []  # for the log, if they are asked for there
        self._timing = Timing(router.metrics, time.perf_counter)
        self._span = RequestSpan(router.tracing, name, router.config.served_name, request.headers)
        self._deadline = self._loop.time() + router.policy.request_timeout_seconds

    async def give(self) -> None:
        """Raises RouterError where `refuse` is to answer, by the deadline whatever the client does."""
        try:
            async with asyncio.timeout_at(min(self._deadline, self._loop.time() + _BODY_SECONDS)):
                raw = await self._read()
        except TimeoutError:
            raise BodyTimeout("the body did not arrive in time: send the request again") from None
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._serve(raw)
        except TimeoutError:
            raise DeadlineExceeded(
                "the request's time is over: ask for fewer tokens, read faster, or raise request_timeout_seconds"
            ) from None

    async def refuse(self, error: RouterError) -> None:
        """A status, or an event if the status was sent before; nothing to a client that does not read."""
        self._error = error
        try:
            async with asyncio.timeout_at(max(self._deadline, self._loop.time() + _LAST_WORD_SECONDS)):
                await self._refuse(error)
        except TimeoutError:  # the server closes a connection whose answer has no end
            kind = type(error).__name__  # its text may be the client's, and of any length
            log.info("request %s: the client does not read why it ends: %d %s", self.request_id, error.status, kind)

    def finishes(self) -> list[str | None]:
        """How each choice that workers were asked for ended; None: not by itself."""
        return [output.finish for output in self._exchange.outputs] if self._exchange else []

    def end(self, outcome: str) -> None:
        """Leave the one line about this request, and its span."""
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
        """What happened on the way, for those who ask for it by the header `x-v4serve-timing: 1`."""
        if self._request.headers.get("x-v4serve-timing") != "1":
            return {}
        return {"v4serve": {**self._timing.breakdown().body(), "ways": [flow.facts() for flow in exchange.flows]}}


async def _watch(receive: Receive, exchange: Exchange) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.leave()
