"""Which images are run. Pure.

A new default image of the operator must not roll what runs, and taking a change back in the middle of a roll must
lead back to the pods that were there before: without an image in the spec, what exists decides.
"""

from v4_operator.live import Live
from v4_operator.names import child
from v4_operator.records import Settings
from v4_operator.spec import Json, V4Deployment


def worker_image(v4d: V4Deployment, live: Live, settings: Settings) -> str:
    """The spec's image, or that of the oldest worker Deployment, or the operator's default."""
    oldest = live.workers[0] if live.workers else None
    return v4d.spec.image or _image(oldest) or settings.worker_image


def router_image(v4d: V4Deployment, live: Live, settings: Settings) -> str:
    """The spec's image, or that of the router that exists, or the operator's default."""
    return v4d.spec.router.image or _image(live.find("Deployment", child(v4d, "router"))) or settings.router_image


def _image(deployment: Json | None) -> str:
    if deployment is None:
        return ""
    return str(deployment["spec"]["template"]["spec"]["containers"][0].get("image", ""))
