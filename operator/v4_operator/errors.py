"""The errors of the operator.

    V4Error (v4_core)
    ├── ConfigError (v4_core)    flags, or a cluster that cannot be found
    ├── SpecError (spec/)        a V4Deployment that no record can hold
    └── OperatorError
        ├── ApiError             the API server refused a request; carries HTTP status and reason
        │   └── Unreachable      it did not answer in time, or not at all
        ├── NameTaken            an object of a child's name belongs to somebody else
        ├── Leaving              an object of a child's name is being deleted; its name is free soon
        ├── KindMissing          the API server has no such kind
        ├── WatchFailed          kopf gave up on the custom resource; the process ends and is started again
        └── LeadershipLost            another replica leads, or may do so by now

What a person can change becomes a condition of the V4Deployment; everything else is tried again, ever less often.
"""

import re
from typing import Any

from v4_core.errors import V4Error

# Refusals of a request's content that the API server answers as if it had failed itself: an apply whose object has a
# field of another type, an unknown one, or two items of one key is a 500; an admission webhook chooses its own status.
_OF_THE_CONTENT = re.compile(r"failed to create typed (patch|live) object|admission webhook .* denied the request")


class OperatorError(V4Error):
    """Root of what goes wrong while the operator runs. `kind` counts it in the metrics."""

    kind = "other"


class ApiError(OperatorError):
    """A request that the API server refused."""

    kind = "api"

    def __init__(self, what: str, status: int, body: Any = None) -> None:
        details = body if isinstance(body, dict) else {}
        self.status = status  # HTTP; 0 = no answer
        self.reason: str = str(details.get("reason") or "")  # e.g. AlreadyExists
        self.causes = [str(cause.get("reason")) for cause in (details.get("details") or {}).get("causes") or []]
        self.words = str(details.get("message") or self.reason or f"HTTP {status}")  # the API server's own
        super().__init__(f"{what}: {self.words}")

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed a little later without anybody changing anything."""
        if _OF_THE_CONTENT.search(self.words):
            return False
        return self.status in (0, 401, 408, 409, 429) or self.status >= 500 or "NamespaceTerminating" in self.causes


class Unreachable(ApiError):
    """No answer from the API server."""

    kind = "unreachable"

    def __init__(self, what: str, error: BaseException) -> None:
        super().__init__(what, 0, {"message": f"the API server does not answer: {error or type(error).__name__}"})


class NameTaken(OperatorError):
    """An object that the operator did not make has the name of a child."""

    kind = "name_taken"


class Leaving(OperatorError):
    """An object of a former V4Deployment of this name is not gone yet."""

    kind = "leaving"


class KindMissing(OperatorError):
    """A kind of child that this cluster does not know."""

    kind = "kind_missing"


class WatchFailed(OperatorError):
    """The server answers for V4Deployments in a way that kopf cannot go on with, or no longer has them."""


class LeadershipLost(OperatorError):
    """This replica must not write any more."""


EVENT, BUG = "event", "bug"  # kinds beside those of classes: an Event that was not written, a fault in the operator
KINDS = (*(each.kind for each in (OperatorError, ApiError, Unreachable, NameTaken, Leaving, KindMissing)), EVENT, BUG)
