"""Which images are run. Pure.

A new default image of the operator must not roll what runs, and taking a change back in the middle of a roll must
lead back to the pods that were there before: without an image in the spec, what the operator once chose decides. It
never reads what a live container runs, which may be anybody's choice.
"""

from v4_operator.accepted import Accepted
from v4_operator.deployments import chosen_image
from v4_operator.live import Live
from v4_operator.names import child
from v4_operator.records import Settings
from v4_operator.router_objects import ROUTER
from v4_operator.spec import V4Deployment
from v4_operator.workers import image_of


def worker_image(v4d: V4Deployment, live: Live, settings: Settings, accepted: Accepted) -> str:
    """The spec's image, or that of the oldest workers, or that of the last good spec, or the operator's default."""
    oldest = image_of(live.workers[0]) if live.workers else ""
    return v4d.spec.image or oldest or accepted.worker_image or settings.worker_image


def router_image(v4d: V4Deployment, live: Live, settings: Settings, accepted: Accepted) -> str:
    """The spec's image, or that of the last good spec, or that of the router that exists, or the operator's default."""
    router = live.find("Deployment", child(v4d, ROUTER))
    existing = chosen_image(router, ROUTER) if router else ""
    return v4d.spec.router.image or accepted.router_image or existing or settings.router_image
