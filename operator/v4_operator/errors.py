"""The errors of the operator.

    V4Error (v4_core)
    ├── ConfigError (v4_core)    a flag is invalid, or no cluster is configured
    ├── SpecError (spec/)        the spec of a V4Deployment cannot be parsed
    ├── ApiError (v4_kube)       the API server refused a request, or did not answer
    └── OperatorError
        ├── NameTaken            an object with the name of a child belongs to somebody else
        ├── Leaving              an object with the name of a child is being deleted; the name is free soon
        ├── KindMissing          the API server has no such kind
        ├── WatchFailed          kopf stopped watching the custom resource; the process ends, to be restarted
        └── LeadershipLost       another replica leads, or may lead by now

An error that a user can correct becomes a condition of the V4Deployment. All others are retried with back-off.
"""

from v4_core.errors import V4Error
from v4_kube.errors import ApiError, Unreachable


class OperatorError(V4Error):
    """Root of the operator's own errors while it runs. `kind` is their label in the metrics."""

    kind = "other"


class NameTaken(OperatorError):
    """An object that the operator did not create has the name of a child."""

    kind = "name_taken"


class Leaving(OperatorError):
    """An object of a former V4Deployment of this name is not deleted yet."""

    kind = "leaving"


class KindMissing(OperatorError):
    """The cluster does not have the kind of a child."""

    kind = "kind_missing"


class WatchFailed(OperatorError):
    """The server no longer has V4Deployments, or answers in a way that ends kopf's watch."""


class LeadershipLost(OperatorError):
    """Another replica leads or may lead, so this one must not write."""


Failure = OperatorError | ApiError  # errors after which a reconcile is retried

EVENT, BUG = "event", "bug"  # kinds without a class: an Event that was not created, a bug in the operator
KINDS = (*(each.kind for each in (OperatorError, ApiError, Unreachable, NameTaken, Leaving, KindMissing)), EVENT, BUG)
