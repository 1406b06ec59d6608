"""Where pods find the model: a flag, and a volume that is mounted read-only. Pure.

A model from Hugging Face is brought into a claim by a Job (`v4_operator.manifests.download`); here it is a claim like
any other.
"""

from dataclasses import dataclass
from typing import Any

from v4_operator.manifests.names import short_digest
from v4_operator.spec.v4deployment import HuggingFace, Model

MODEL_DIR = "/model"
VOLUME = "model"


@dataclass(frozen=True)
class ModelSource:
    """How a pod gets at the checkpoint."""

    argument: str  # of --model
    volume: dict[str, Any] | None = None  # None = the image has it

    @property
    def mount(self) -> dict[str, Any] | None:
        """The mount that belongs to the volume."""
        return None if self.volume is None else {"name": VOLUME, "mountPath": MODEL_DIR, "readOnly": True}


def model_source(model: Model) -> ModelSource:
    """The source that the spec names."""
    if model.source == "demo":
        return ModelSource("demo")
    return ModelSource(_inside(_path(model)), {"name": VOLUME, **_volume(model)})


def claim_of(fetched: HuggingFace) -> str:
    """The claim that holds a fetched model: the user's, or one that every V4Deployment of this model shares."""
    return fetched.claim or f"v4serve-model-{short_digest([fetched.repository, fetched.revision])}"


def folder_of(fetched: HuggingFace) -> str:
    """Folder of a fetched model within its claim, which may hold several."""
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
