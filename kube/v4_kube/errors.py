"""The errors of requests to the Kubernetes API.

V4Error (v4_core)
├── ConfigError (v4_core)    no cluster is configured, or its credentials cannot be read
└── ApiError                 the API server refused a request; carries HTTP status and reason
    └── Unreachable          the API server did not answer, or not in time
"""

import re
from typing import Any

from v4_core.errors import V4Error

# The API server answers some refusals of a request's content as if it had failed itself: an apply whose object has a
# field of the wrong type, an unknown field or two items with the same key is a 500, and an admission webhook chooses
# its own status.
_CONTENT_REFUSED = re.compile(r"failed to create typed (patch|live) object|admission webhook .* denied the request")


class ApiError(V4Error):
    """The API server refused a request."""

    kind = "api"  # short name of the class, for metrics

    def __init__(self, what: str, status: int, body: Any = None) -> None:
        details = body if isinstance(body, dict) else {}
        self.status = status  # HTTP; 0 = no answer
        self.reason: str = str(details.get("reason") or "")  # e.g. AlreadyExists
        self.causes = [str(cause.get("reason")) for cause in (details.get("details") or {}).get("causes") or []]
        self.words = str(details.get("message") or self.reason or f"HTTP {status}")  # the API server's message
        super().__init__(f"{what}: {self.words}")

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later without any change by a user."""
        if _CONTENT_REFUSED.search(self.words):
            return False
        return self.status in (0, 401, 408, 409, 429) or self.status >= 500 or "NamespaceTerminating" in self.causes


class Unreachable(ApiError):
    """The API server did not answer."""

    kind = "unreachable"

    def __init__(self, what: str, error: BaseException) -> None:
        super().__init__(what, 0, {"message": f"the API server does not answer: {error or type(error).__name__}"})
