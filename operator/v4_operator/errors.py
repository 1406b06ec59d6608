"""The errors of the operator.

    V4Error (v4_core)
    ├── ConfigError (v4_core)    flags, or a cluster that cannot be found
    ├── SpecError (spec/)        a V4Deployment that no record can hold
    ├── ApiError (v4_kube)       the API server refused a request, or did not answer
    └── OperatorError
        ├── NameTaken            an object of a child's name belongs to somebody else
        ├── Leaving              an object of a child's name is being deleted; its name is free soon
        ├── KindMissing          the API server has no such kind
        ├── WatchFailed          kopf gave up on the custom resource; the process ends and is started again
        └── LeadershipLost            another replica leads, or may do so by now

What a person can change becomes a condition of the V4Deployment; everything else is tried again, ever less often.
"""

from v4_core.errors import V4Error
from v4_kube.errors import ApiError, Unreachable


class OperatorError(V4Error):
    """Root of what goes wrong while the operator runs. `kind` counts it in the metrics."""

    kind = "other"


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


Failure = OperatorError | ApiError  # what a reconcile may fail with, and then is tried again

EVENT, BUG = "event", "bug"  # kinds beside those of classes: an Event that was not written, a fault in the operator
KINDS = (*(each.kind for each in (OperatorError, ApiError, Unreachable, NameTaken, Leaving, KindMissing)), EVENT, BUG)
