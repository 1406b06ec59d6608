"""The models that ship with the repository. This package only knows the paths of their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DEMO_MODEL: Final[Path] = Path(__file__).parent / "demo"
"""A trained model of V4's architecture with 4.9 M parameters, with a tokenizer and a model card."""

__all__ = ["DEMO_MODEL"]
