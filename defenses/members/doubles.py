"""Float64 on every device: on the CPU if the device itself has no float64."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def in_float64(values: Tensor) -> Tensor:
    """The values in float64; on the CPU for a device without it, such as MPS. Gradients flow back either way."""
    return values.double() if _has_float64(values.device) else values.cpu().double()


@functools.cache
def _has_float64(device: torch.device) -> bool:
    try:
        torch.ones(2, dtype=torch.float64, device=device).sum().item()  # some GPUs store float64 but cannot add it
    except (RuntimeError, TypeError):
        return False
    return True
