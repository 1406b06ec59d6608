"""The errors of the router: every way in which a request can end badly, and what HTTP says then.

    V4Error (v4_core)
    └── RouterError              ends a request; carries its HTTP status and OpenAI error type
        ├── BadRequest           400, names the field where one is at fault
        │   └── UnknownField     400, it has a field that does not exist
        ├── Unauthorized         401, no key or one that is not known
        ├── UnknownModel         404
        ├── BodyTimeout          408, the body did not arrive in time; the connection is closed
        ├── BodyTooLarge         413
        ├── Overloaded           429, this router or every worker that could serve it is full; Retry-After
        ├── InternalError        500, a worker or this router broke its contract
        ├── Unavailable          503, no worker can serve it now; Retry-After
        │   └── TransferFailed   503, the cache did not come from prefill to decode
        ├── DeadlineExceeded     504
        └── ClientGone           no answer: nobody is there to read it

This is the one map from workers' reasons to HTTP. Configuration errors are core's ConfigError.
"""

from typing import Any, ClassVar

from v4_core.errors import V4Error
from v4_core.v1 import worker_pb2 as pb

RETRY_AFTER_SECONDS = 1


class RouterError(V4Error):
    """Ends a request. `param` names the field of the body that is at fault."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "internal_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

    def body(self) -> dict[str, Any]:
        """The OpenAI error object."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Headers that belong to this status."""
        return {}


class BadRequest(RouterError):
    """The request can never be served as it is."""

    status = 400
    kind = "invalid_request_error"


class UnknownField(BadRequest):
    """It has a field that requests do not have; `param` is of the client's making."""

    code = "unknown_parameter"


class Unauthorized(RouterError):
    """Nobody known asks."""

    status = 401
    kind = "invalid_request_error"
    code = "invalid_api_key"

    def headers(self) -> dict[str, str]:
        """Says how to show a key."""
        return {"www-authenticate": "Bearer"}


class UnknownModel(RouterError):
    """The named model is not served here."""

    status = 404
    kind = "invalid_request_error"
    code = "model_not_found"


class BodyTimeout(RouterError):
    """The body did not arrive in time."""

    status = 408
    kind = "invalid_request_error"

    def headers(self) -> dict[str, str]:
        """Whatever still comes of the body is no request."""
        return {"connection": "close"}


class BodyTooLarge(RouterError):
    """The body is larger than any prompt could be."""

    status = 413
    kind = "invalid_request_error"


class Overloaded(RouterError):
    """This router, or every worker that could take the request, is full."""

    status = 429
    kind = "rate_limit_error"
    code = "overloaded"

    def headers(self) -> dict[str, str]:
        """Says when to come again."""
        return {"retry-after": str(RETRY_AFTER_SECONDS)}


class InternalError(RouterError):
    """A worker, or this router, did what it must not."""


class Unavailable(RouterError):
    """No worker can take the request now."""

    status = 503
    kind = "service_unavailable_error"
    code = "no_worker"

    def headers(self) -> dict[str, str]:
        """Says when to come again."""
        return {"retry-after": str(RETRY_AFTER_SECONDS)}


class TransferFailed(Unavailable):
    """The cache could not be moved from prefill to decode."""

    code = "transfer_failed"


class DeadlineExceeded(RouterError):
    """The request's time was over before its end."""

    status = 504
    kind = "timeout_error"
    code = "deadline_exceeded"


class ClientGone(RouterError):
    """The client closed the connection; the status is for logs only."""

    status = 499
    kind = "client_gone"


def statuses() -> list[str]:
    """Every status that a request can be answered with when it ends badly."""

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
    """The error that a request ends with when a worker's failure for this reason is final."""
    return _OF_REASON.get(reason, InternalError)(message or f"a worker failed: {pb.Reason.Name(reason)}")
