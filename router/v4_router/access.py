"""Authentication: ASGI middleware that admits a request to the API only if it carries a known API key."""

import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from v4_router import request_log
from v4_router.api import API_ROUTES, TENANT, error_response, request_id
from v4_router.errors import Unauthorized
from v4_router.keys import KeyRing
from v4_router.metrics import OTHER, Metrics
from v4_router.timing import Timing

_OPEN = ("/health", "/ready")
_SCHEME = b"bearer "


class Access:
    """Passes a request with a known key to `app`, with its tenant in the scope, and answers 401 to any other."""

    def __init__(self, app: ASGIApp, keys: KeyRing, metrics: Metrics) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            tenant = self._tenant(scope)
            if tenant is None:
                await self._refuse(scope, receive, send)
                return
            scope[TENANT] = tenant
        await self._app(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        timing = Timing(self._metrics, time.perf_counter)
        error = Unauthorized("the API key is missing or unknown: send the header `Authorization: Bearer KEY`")
        name, outcome = request_id(Headers(scope=scope)), str(error.status)
        endpoint = API_ROUTES.get(scope["path"], OTHER)
        try:
            await error_response(error, name)(scope, receive, send)
        finally:
            self._metrics.ended(endpoint, outcome, (), answered=False)
            request_log.write(request_log.Ended(name, "", endpoint, outcome, "", error=error), timing.breakdown(), None)

    def _tenant(self, scope: Scope) -> str | None:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if header[: len(_SCHEME)].lower() != _SCHEME:
            return None
        return self._keys.tenant(header[len(_SCHEME) :].strip())
