"""The routes of one router: the API, and what watches over it."""

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
    """The API of a router that is running."""
    plain = _Plain(router)
    app = Starlette(
        routes=[
            *(Route(path, ApiRoute(router, name), methods=["POST"]) for path, name in API_ROUTES.items()),
            Route("/v1/models", plain.models),
            Route("/v1/models/{name:path}", plain.model),
            *_watched(plain),
            *(_shown(plain) if router.keys is None else ()),
        ],
        exception_handlers={HTTPException: _not_here},
    )
    return app if router.keys is None else Access(app, router.keys, router.metrics)


def build_monitoring_app(router: Router) -> ASGIApp:
    """What probes, scrapers, the operator and people ask, without a key."""
    plain = _Plain(router)
    return Starlette(routes=[*_watched(plain), *_shown(plain)])


def _watched(plain: "_Plain") -> list[Route]:
    return [Route("/health", plain.health), Route("/ready", plain.ready), Route("/metrics", plain.metrics)]


def _shown(plain: "_Plain") -> list[Route]:
    return [Route("/", plain.page), Route("/fleet", plain.fleet), Route("/facts", plain.facts)]


class _Plain:
    """The routes that ask no worker."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def _max_model_len(self) -> int | None:
        try:
            return self._router.fleet.limits().max_model_len
        except Unavailable:
            return None

    async def models(self, _: Request) -> Response:
        """The one model."""
        router = self._router
        return JSONResponse(models(router.config.served_name, router.created, self._max_model_len()))

    async def model(self, request: Request) -> Response:
        """The one model, by name."""
        router, name = self._router, request.path_params["name"]
        if name != router.config.served_name:
            error = UnknownModel(f"the model {name!r} is not served here: use {router.config.served_name!r}", "model")
            return JSONResponse(error.body(), error.status)
        return JSONResponse(model(name, router.created, self._max_model_len()))

    async def health(self, _: Request) -> Response:
        """The process answers, and nothing in it broke."""
        if self._router.healthy:
            return JSONResponse({"status": "ok"})
        error = InternalError("a part of the router broke: restart it, and look into its log")
        return JSONResponse(error.body(), 503)

    async def ready(self, _: Request) -> Response:
        """200 once a token went through a pair of workers, and while requests find workers."""
        if self._router.ready:
            return JSONResponse({"status": "ready"})
        error = Unavailable(
            "the router is stopping"
            if self._router.draining
            else "no token went through a prefill and a decode worker yet, or none is up now"
        )
        return JSONResponse(error.body(), error.status)

    async def fleet(self, _: Request) -> Response:
        """Workers and revisions."""
        return JSONResponse(fleet_status(self._router))

    async def facts(self, _: Request) -> Response:
        """What the page and `v4serve top` draw."""
        router = self._router
        now = sample(router.metrics, time.monotonic())
        known = facts(router.recent.add(now), now, fleet_status(router), router.fleet.waiting_for_room)
        return JSONResponse(asdict(known), headers={"cache-control": "no-store"})

    async def page(self, _: Request) -> Response:
        """What /facts says, for people."""
        return HTMLResponse(PAGE, headers=PAGE_HEADERS)

    async def metrics(self, _: Request) -> Response:
        """Prometheus text."""
        return Response(generate_latest(self._router.metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _not_here(_: Request, failure: Exception) -> Response:
    """Unknown paths and methods, as OpenAI errors."""
    assert isinstance(failure, HTTPException)  # as registered
    error = RouterError(f"{failure.detail}: see /v1/models, /v1/completions and /v1/chat/completions")
    body = error.body()
    body["error"]["type"] = "invalid_request_error"
    return JSONResponse(body, failure.status_code, failure.headers)  # `Allow` is one of them
