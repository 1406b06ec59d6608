"""Maps transfers to gRPC: method names and status codes. Knows no memory and no lease."""

import grpc
import grpc.aio

from v4_kvtransfer import errors

SERVICE = "v4_core.v1.Transfer"
PULL = f"/{SERVICE}/Pull"
CONFIRM = f"/{SERVICE}/Confirm"

CODES: dict[type[errors.TransferError], grpc.StatusCode] = {
    errors.LeaseGone: grpc.StatusCode.NOT_FOUND,
    errors.StaleAttempt: grpc.StatusCode.ABORTED,
    errors.FingerprintMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PullMismatch: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TokenRefused: grpc.StatusCode.UNAUTHENTICATED,  # sent by the interceptor of the provider's server
    errors.Stalled: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_ERRORS = {code: kind for kind, code in CODES.items()}


def from_rpc(error: grpc.aio.AioRpcError) -> errors.TransferError:
    """The TransferError for a failed call; PeerLost for every status code that the provider does not send itself."""
    code, details = error.code(), error.details() or "no details"
    if kind := _ERRORS.get(code):
        return kind(details)
    return errors.PeerLost(f"the transfer's connection ended with {code.name}: {details}")
