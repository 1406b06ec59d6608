"""The HTTP routes of a router: the OpenAI API, and the routes for monitoring."""

import time
from dataclasses import asdict

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from v4_router.access import Access
from v4_router.api import API_ROUTES, ApiRoute
from v4_router.errors import InternalError, RouterError, Unavailable, UnknownModel
from v4_router.facts import facts
from v4_router.page import PAGE, PAGE_HEADERS
from v4_router.render import model, models
from v4_router.router import Router
from v4_router.status import fleet_status, sample


def build_app(router: Router) -> ASGIApp:
    """Returns the application of the API port.

    Without API keys it also has the page, /fleet and /facts, which are otherwise on the monitoring port only.
    """
    plain = _Plain(router)
    app = Starlette(
        routes=[
            *(Route(path, ApiRoute(router, name), methods=["POST"]) for path, name in API_ROUTES.items()),
            Route("/v1/models", plain.models),
            Route("/v1/models/{name:path}", plain.model),
            *_probe_routes(plain),
            *(_view_routes(plain) if router.keys is None else ()),
        ],
        exception_handlers={HTTPException: _http_error},
    )
    return app if router.keys is None else Access(app, router.keys, router.metrics)


def build_monitoring_app(router: Router) -> ASGIApp:
    """Returns the application of the monitoring port, which needs no API key: probes, metrics, page, /fleet, /facts."""
    plain = _Plain(router)
    return Starlette(routes=[*_probe_routes(plain), *_view_routes(plain)])


def _probe_routes(plain: "_Plain") -> list[Route]:
    return [Route("/health", plain.health), Route("/ready", plain.ready), Route("/metrics", plain.metrics)]


def _view_routes(plain: "_Plain") -> list[Route]:
    return [Route("/", plain.page), Route("/fleet", plain.fleet), Route("/facts", plain.facts)]


class _Plain:
    """The routes that are answered from the router's own state, without a request to a worker."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def _max_model_len(self) -> int | None:
        try:
            return self._router.fleet.limits().max_model_len
        except Unavailable:
            return None

    async def models(self, _: Request) -> Response:
        """Answers /v1/models with the one model that is served."""
        router = self._router
        return JSONResponse(models(router.config.served_name, router.created, self._max_model_len()))

    async def model(self, request: Request) -> Response:
        """Answers /v1/models/NAME; 404 if the name is not that of the served model."""
        router, name = self._router, request.path_params["name"]
        if name != router.config.served_name:
            error = UnknownModel(f"the model {name!r} is not served here: use {router.config.served_name!r}", "model")
            return JSONResponse(error.body(), error.status)
        return JSONResponse(model(name, router.created, self._max_model_len()))

    async def health(self, _: Request) -> Response:
        """Answers 200 unless a background task has failed."""
        if self._router.healthy:
            return JSONResponse({"status": "ok"})
        error = InternalError("a background task of the router failed: see its log, and restart the router")
        return JSONResponse(error.body(), 503)

    async def ready(self, _: Request) -> Response:
        """Answers 200 while the router can place requests: a probe has generated a token through a pair of workers."""
        if self._router.ready:
            return JSONResponse({"status": "ready"})
        error = Unavailable(
            "the router is stopping"
            if self._router.draining
            else "no pair of a prefill and a decode worker has generated a token yet, or no such pair is up now"
        )
        return JSONResponse(error.body(), error.status)

    async def fleet(self, _: Request) -> Response:
        """Answers /fleet: the state of the router, its workers and its revisions, for the operator."""
        return JSONResponse(fleet_status(self._router))

    async def facts(self, _: Request) -> Response:
        """Answers /facts: the figures that the page and `v4serve top` draw."""
        router = self._router
        now = sample(router.metrics, time.monotonic())
        known = facts(router.recent.add(now), now, fleet_status(router), len(router.fleet.room_queue))
        return JSONResponse(asdict(known), headers={"cache-control": "no-store"})

    async def page(self, _: Request) -> Response:
        """Answers / with the page that draws /facts."""
        return HTMLResponse(PAGE, headers=PAGE_HEADERS)

    async def metrics(self, _: Request) -> Response:
        """Answers /metrics in Prometheus's text format."""
        return Response(generate_latest(self._router.metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _http_error(_: Request, failure: Exception) -> Response:
    """Answers an unknown path or a wrong method with an OpenAI error object."""
    assert isinstance(failure, HTTPException)  # registered for this type only
    error = RouterError(f"{failure.detail}: see /v1/models, /v1/completions and /v1/chat/completions")
    body = error.body()
    body["error"]["type"] = "invalid_request_error"
    return JSONResponse(body, failure.status_code, failure.headers)  # with `Allow` after a wrong method
