"""Names the revision of a spec and chooses the images. Pure.

A change of the spec has one of three effects:

    new revision   caches cannot or should not move between old and new workers: both pools are replaced
    new pods       the pod template changes: each pool replaces its pods gradually, within the revision
    no restart     sizes of pools, limits of routers, labels and annotations of objects

`revision` covers everything on which the exchange of caches depends. Every other field that
`v4_operator.manifests.workers` renders into the pod template causes new pods. Metadata of the V4Deployment or of its
children is in neither.

Without an image in the spec, the operator keeps the image that it chose before. A new default image of the operator
therefore does not restart running pods, and reverting a change in the middle of a rollout returns to the former pods.
The image of a live container counts only if no choice was stored, because others may have changed it.
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
    """Ten hexadecimal digits, a hash of the workers' image and of the fields on which exchanging caches depends."""
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
    """What identifies the weights; excludes the served name and how the weights get into the volume."""
    fetched = model.hugging_face
    remote = [fetched.repository, fetched.revision, fetched.claim] if fetched else []
    return [model.source, model.location, model.path, model.revision, *remote]


def worker_image(v4d: V4Deployment, live: Live, settings: Settings, accepted: Accepted) -> str:
    """The image of the spec, of the oldest workers, of the last valid spec, or the operator's default, in this order.

    If the oldest workers do not store what was chosen for them, the last valid spec goes before their live image.
    """
    existing = live.workers[0] if live.workers else None
    oldest = image_of(existing) if existing else ""
    chosen = oldest if existing and remembers(existing) else accepted.worker_image or oldest
    return v4d.spec.image or chosen or settings.worker_image


def router_image(v4d: V4Deployment, live: Live, settings: Settings, accepted: Accepted) -> str:
    """The image of the spec, the last valid spec, the existing router, or the operator's default, in this order."""
    router = live.find("Deployment", child(v4d, ROUTER))
    existing = chosen_image(router, ROUTER) if router else ""
    return v4d.spec.router.image or accepted.router_image or existing or settings.router_image
