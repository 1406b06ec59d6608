"""Which images are run, and what a change of the spec means for the pods that run. Pure.

    exchange   caches could not move between old and new workers, or should not: a new revision of both pools
    pod        the pods' template changes: each pool replaces its pods, a few at a time, within its revision
    none       nothing restarts: sizes of pools, limits of routers, labels and annotations of objects

`revision` names the workers that may exchange caches, so a change of it is an exchange. A pod change is whatever else
alters the template that `v4_operator.manifests.workers` renders. Metadata, of the V4Deployment or of children, is in
neither.

A new default image of the operator must not roll what runs, and taking a change back in the middle of a roll must
lead back to the pods that were there before: without an image in the spec, what the operator once chose decides. What
a live container runs may be anybody's choice, and counts only for what was made by an operator that noted nothing.
"""

from v4_operator.manifests.accepted import Accepted
from v4_operator.manifests.deployments import chosen_image, remembers
from v4_operator.manifests.names import child, short_digest
from v4_operator.manifests.router_objects import ROUTER
from v4_operator.manifests.settings import Settings
from v4_operator.manifests.workers import image_of
from v4_operator.observed.live import Live
from v4_operator.spec.v4deployment import Model, Spec, V4Deployment


def revision(spec: Spec, image: str) -> str:
    """Ten hexadecimal digits: the exchange fields of the spec, and the image that workers run."""
    return short_digest(
        {
            "image": image,
            "model": _weights(spec.model),
            "format": spec.cache.format,
            "indexFormat": spec.cache.index_format,
            "placement": spec.placement,
        }
    )


def _weights(model: Model) -> list[str]:
    """Which weights are loaded: neither what clients call them, nor how they come into a volume."""
    fetched = model.hugging_face
    remote = [fetched.repository, fetched.revision, fetched.claim] if fetched else []
    return [model.source, model.location, model.path, model.revision, *remote]


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
