"""The models that ship with the repository: where their folders lie, and nothing about how to run them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DEMO_MODEL: Final[Path] = Path(__file__).parent / "demo"
"""A trained model of V4's architecture with 4.9 M parameters: DeepSeek's names and keys, a tokenizer, a card."""

__all__ = ["DEMO_MODEL"]
