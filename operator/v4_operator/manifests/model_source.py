"""Tells pods where the model is: a flag and a volume that is mounted read-only. Pure.

A Job (`v4_operator.manifests.download`) downloads a model from Hugging Face into a claim; here it is a claim like any
other.
"""

from dataclasses import dataclass
from typing import Any

from v4_operator.manifests.names import short_digest
from v4_operator.spec.v4deployment import HuggingFace, Model

MODEL_DIR = "/model"
VOLUME = "model"


@dataclass(frozen=True)
class ModelSource:
    """How a pod accesses the checkpoint."""

    argument: str  # value of --model
    volume: dict[str, Any] | None = None  # None = the checkpoint is in the container image

    @property
    def mount(self) -> dict[str, Any] | None:
        """The volume mount for a container."""
        return None if self.volume is None else {"name": VOLUME, "mountPath": MODEL_DIR, "readOnly": True}


def model_source(model: Model) -> ModelSource:
    """Flag and volume for the source in the spec."""
    if model.source == "demo":
        return ModelSource("demo")
    return ModelSource(_inside(_path(model)), {"name": VOLUME, **_volume(model)})


def claim_of(fetched: HuggingFace) -> str:
    """Name of the claim for a downloaded model: the user's, or one that all V4Deployments of the model share."""
    return fetched.claim or f"v4serve-model-{short_digest([fetched.repository, fetched.revision])}"


def folder_of(fetched: HuggingFace) -> str:
    """Folder of a downloaded model inside its claim, which may hold several models."""
    return f"{fetched.repository}/{fetched.revision.replace('/', '_')}"


def _volume(model: Model) -> dict[str, Any]:
    if model.source == "hostPath":
        return {"hostPath": {"path": model.location, "type": "Directory"}}
    if model.source == "image":
        return {"image": {"reference": model.location, "pullPolicy": "IfNotPresent"}}
    claim = claim_of(model.hugging_face) if model.hugging_face else model.location
    return {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}


def _path(model: Model) -> str:
    return folder_of(model.hugging_face) if model.hugging_face else model.path


def _inside(path: str) -> str:
    relative = path.strip("/")
    return f"{MODEL_DIR}/{relative}" if relative else MODEL_DIR
