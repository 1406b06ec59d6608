"""The value of `--model`: the path of a checkpoint, or `demo` for the model that ships with v4serve."""

from pathlib import Path

DEMO = "demo"


def demo_model() -> Path:
    """Returns the folder of the model that ships with v4serve."""
    from v4_models import DEMO_MODEL  # noqa: PLC0415

    return DEMO_MODEL


def model_folder(given: str) -> Path:
    """Returns the folder that `--model` names. A user's own folder named `demo` must be given as `./demo`."""
    return demo_model() if given == DEMO else Path(given)
