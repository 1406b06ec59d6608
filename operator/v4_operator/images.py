"""Which images are run. Pure.

A new default image of the operator must not roll what runs, and taking a change back in the middle of a roll must
lead back to the pods that were there before: without an image in the spec, what the operator once chose decides. What
a live container runs may be anybody's choice, and counts only for what was made by an operator that noted nothing.
"""

from v4_operator.accepted import Accepted
from v4_operator.deployments import chosen_image, remembers
from v4_operator.live import Live
from v4_operator.names import child
from v4_operator.records import Settings
from v4_operator.router_objects import ROUTER
from v4_operator.spec import V4Deployment
from v4_operator.workers import image_of


def worker_image(v4d: V4Deployment, live: Live, settings: Settings, accepted: Accepted) -> str:
    """The spec's image, or that of the oldest workers, or that of the last good spec, or the operator's default.

    Of workers that do not say what was chosen for them, what runs counts only where there is no last good spec.
    """
    existing = live.workers[0] if live.workers else None
    oldest = image_of(existing) if existing else ""
    chosen = oldest if existing and remembers(existing) else accepted.worker_image or oldest
    return v4d.spec.image or chosen or settings.worker_image


def router_image(v4d: V4Deployment, live: Live, settings: Settings, accepted: Accepted) -> str:
    """The spec's image, or that of the last good spec, or that of the router that exists, or the operator's default."""
    router = live.find("Deployment", child(v4d, ROUTER))
    existing = chosen_image(router, ROUTER) if router else ""
    return v4d.spec.router.image or accepted.router_image or existing or settings.router_image
