"""What a change of the spec means for the pods that run. Pure.

    exchange   caches could not move between old and new workers, or should not: a new revision of both pools
    pod        the pods' template changes: each pool replaces its pods, a few at a time, within its revision
    none       nothing restarts: sizes of pools, limits of routers, labels and annotations of objects

`revision` names the workers that may exchange caches, so a change of it is an exchange. A pod change is whatever else
alters the template that `v4_operator.workers` renders. Metadata, of the V4Deployment or of children, is in neither.
"""

from v4_operator.names import short_digest
from v4_operator.spec import Model, Spec


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
