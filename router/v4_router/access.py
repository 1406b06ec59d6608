"""Who may ask: an ASGI layer before the API that knows requests by their keys."""

import uuid

from starlette.types import ASGIApp, Receive, Scope, Send

from v4_core.reloading import Reloaded
from v4_router.api import TENANT, error_response
from v4_router.errors import Unauthorized
from v4_router.keys import Keys

_OPEN = ("/health", "/ready")
_SCHEME = b"bearer "


class Access:
    """Passes requests on whose key is known; 401 for others."""

    def __init__(self, app: ASGIApp, keys: Reloaded[Keys]) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            tenant = self._tenant(scope)
            if tenant is None:
                error = Unauthorized("no known API key: send the header `Authorization: Bearer KEY`")
                await error_response(error, uuid.uuid4().hex)(scope, receive, send)
                return
            scope[TENANT] = tenant
        await self._app(scope, receive, send)

    def _tenant(self, scope: Scope) -> str | None:
        shown = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if shown[: len(_SCHEME)].lower() != _SCHEME:
            return None
        return self._keys.current.tenant(shown[len(_SCHEME) :].strip())
