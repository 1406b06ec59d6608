"""Which folder `--model` means: a path, or the word `demo` for the model that ships with v4serve."""

from pathlib import Path

DEMO = "demo"


def demo_model() -> Path:
    """Folder of the model that ships with v4serve."""
    from v4_models import DEMO_MODEL  # noqa: PLC0415

    return DEMO_MODEL


def model_folder(given: str) -> Path:
    """The folder that a flag names; a folder called like the word is given as `./demo`."""
    return demo_model() if given == DEMO else Path(given)
