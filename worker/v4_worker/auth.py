"""Authenticates callers of a worker by the component token. Health stays open, because probes have no token."""

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1 import health

from v4_core.token import METADATA_KEY, TokenFile

_HEALTH = f"/{health.SERVICE_NAME}/"

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not subscriptable at run time
    """Refuses calls without the token before they reach the service."""

    def __init__(self, token: TokenFile) -> None:
        self._token = token

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]], details: grpc.HandlerCallDetails
    ) -> _Handler:
        """Returns the call's own handler, or one that refuses the call."""
        if details.method.startswith(_HEALTH) or self._token.accepts(_authorization(details)):
            return await continuation(details)
        return _REFUSAL


def _authorization(details: grpc.HandlerCallDetails) -> str:
    value = dict(details.invocation_metadata).get(METADATA_KEY, "")
    return value if isinstance(value, str) else ""


async def _refuse(messages: object, context: "grpc.aio.ServicerContext[Any, Any]") -> NoReturn:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "the caller did not send this worker's component token: give both the same --token-file",
    )


# A stream handler fits calls of every kind, because it ends the call before it reads a message.
_REFUSAL: _Handler = grpc.stream_stream_rpc_method_handler(_refuse)
