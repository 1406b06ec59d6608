"""The router's errors: every way in which a request can fail, with its HTTP status.

    V4Error (v4_core)
    └── RouterError              ends a request; carries its HTTP status and OpenAI error type
        ├── BadRequest           400, names the field at fault, if a single field is
        │   └── UnknownField     400, the body has a field that does not exist
        ├── Unauthorized         401, the API key is missing or unknown
        ├── UnknownModel         404
        ├── BodyTimeout          408, the body did not arrive in time; the connection is closed
        ├── BodyTooLarge         413
        ├── Overloaded           429, this router, or every worker that could serve the request, is full; Retry-After
        ├── InternalError        500, a bug or a violated contract in a worker or in this router
        ├── Unavailable          503, no worker can serve the request now; Retry-After
        │   └── TransferFailed   503, the cache could not be moved from prefill to decode
        ├── DeadlineExceeded     504
        └── ClientGone           no answer is sent, since the client has disconnected

`of_reason` is the only place that maps a worker's failure reason to an HTTP status. A configuration error is a
ConfigError of v4_core.
"""

from typing import Any, ClassVar

from v4_core.errors import V4Error
from v4_core.v1 import worker_pb2 as pb

RETRY_AFTER_SECONDS = 1


class RouterError(V4Error):
    """Ends a request. `param` is the field of the body that is at fault, or None."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "internal_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

    def body(self) -> dict[str, Any]:
        """Returns the OpenAI error object."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Returns the headers that are sent with this status."""
        return {}


class BadRequest(RouterError):
    """The request is invalid: sending it again unchanged cannot succeed."""

    status = 400
    kind = "invalid_request_error"


class UnknownField(BadRequest):
    """The body has a field that does not exist. `param` is its name, which the client chose."""

    code = "unknown_parameter"


class Unauthorized(RouterError):
    """The API key is missing or unknown."""

    status = 401
    kind = "invalid_request_error"
    code = "invalid_api_key"

    def headers(self) -> dict[str, str]:
        """Returns the authentication scheme that the client must use."""
        return {"www-authenticate": "Bearer"}


class UnknownModel(RouterError):
    """The requested model is not served here."""

    status = 404
    kind = "invalid_request_error"
    code = "model_not_found"


class BodyTimeout(RouterError):
    """The body did not arrive in time."""

    status = 408
    kind = "invalid_request_error"

    def headers(self) -> dict[str, str]:
        """Closes the connection, since the rest of the body would be read as another request."""
        return {"connection": "close"}


class BodyTooLarge(RouterError):
    """The body is larger than the router accepts."""

    status = 413
    kind = "invalid_request_error"


class Overloaded(RouterError):
    """This router, or every worker that could serve the request, is full."""

    status = 429
    kind = "rate_limit_error"
    code = "overloaded"

    def headers(self) -> dict[str, str]:
        """Returns the seconds after which the client should retry."""
        return {"retry-after": str(RETRY_AFTER_SECONDS)}


class InternalError(RouterError):
    """A worker or this router has a bug or violated its contract."""


class Unavailable(RouterError):
    """No worker can serve the request now."""

    status = 503
    kind = "service_unavailable_error"
    code = "no_worker"

    def headers(self) -> dict[str, str]:
        """Returns the seconds after which the client should retry."""
        return {"retry-after": str(RETRY_AFTER_SECONDS)}


class TransferFailed(Unavailable):
    """The cache could not be moved from prefill to decode."""

    code = "transfer_failed"


class DeadlineExceeded(RouterError):
    """The request was not finished by its deadline."""

    status = 504
    kind = "timeout_error"
    code = "deadline_exceeded"


class ClientGone(RouterError):
    """The client closed the connection. The status is never sent."""

    status = 499
    kind = "client_gone"


def statuses() -> list[str]:
    """Returns every HTTP status that a failed request can be answered with."""

    def tree(kind: type[RouterError]) -> set[type[RouterError]]:
        return {kind}.union(*map(tree, kind.__subclasses__()))

    return sorted({str(kind.status) for kind in tree(RouterError) - {ClientGone}})


_OF_REASON: dict[int, type[RouterError]] = {
    pb.INVALID: BadRequest,
    pb.OVERLOADED: Overloaded,
    pb.DRAINING: Unavailable,
    pb.TRANSFER: TransferFailed,
    pb.DEADLINE: DeadlineExceeded,
    pb.INTERNAL: InternalError,
}


def of_reason(reason: int, message: str) -> RouterError:
    """Returns the error of a request that a worker failed for this `pb.Reason` and that is not retried."""
    return _OF_REASON.get(reason, InternalError)(message or f"a worker failed: {pb.Reason.Name(reason)}")
