"""Rotary tables (reference 2.4). Which of the two a layer uses depends on the layer only, never on the tensor."""

import math

import torch
from torch import Tensor

from v4_core.config import ModelConfig


def inverse_frequencies(config: ModelConfig, compressed: bool) -> Tensor:
    """Return the angle per position of each channel pair, [r/2] float64.

    Plain for SWA layers, YaRN for compressed layers.
    """
    r = config.rope_dim
    theta = config.compress_rope_theta if compressed else config.rope_theta
    plain = theta ** (-torch.arange(0, r, 2, dtype=torch.float64) / r)
    yarn = config.yarn
    if not compressed or yarn is None:
        return plain

    def correction(beta: float) -> float:
        return r * math.log(yarn.original_max_position / (2 * math.pi * beta)) / (2 * math.log(theta))

    low = max(math.floor(correction(yarn.beta_fast)), 0)
    high = min(math.ceil(correction(yarn.beta_slow)), r - 1)
    span = max(high - low, 0.001)
    ramp = ((torch.arange(r // 2, dtype=torch.float64) - low) / span).clamp(0, 1)
    return plain * (1 - ramp) + plain / yarn.factor * ramp


class Rope:
    """Both tables on one device, in `acc` type."""

    def __init__(self, config: ModelConfig, device: torch.device, acc: torch.dtype) -> None:
        self._acc = acc
        self._frequencies = {
            compressed: inverse_frequencies(config, compressed).to(torch.float32).to(device, acc)
            for compressed in (False, True)
        }

    def angles(self, positions: Tensor, compressed: bool) -> tuple[Tensor, Tensor]:
        """Return cos and sin [n, r/2] of int64 positions [n]."""
        angle = positions.to(self._acc)[:, None] * self._frequencies[compressed]
        return angle.cos(), angle.sin()
