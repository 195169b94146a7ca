"""Nothing an attack returns is taken on trust: every image is checked, and mended or refused."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 1e-6
"""How far a float32 attack may overshoot the box or the L∞ ball by rounding."""


@dataclass(frozen=True)
class Verified:
    """Images that are finite, inside [0, 1] and inside the ball, and what had to be mended on each."""

    images: Tensor
    not_finite: Tensor
    out_of_box: Tensor
    out_of_ball: Tensor
    moved: Tensor


def verify(clean: Tensor, adversarial: Tensor, budget: float | None) -> Verified:
    """Check adversarial images against the clean ones they were made from.

    An image that is not finite becomes the clean one: the attack failed on it. One outside the box or the L∞
    ball is projected back, and counts if it still fools the model from there.
    """
    if adversarial.shape != clean.shape:
        raise ValueError(f"the attack returned shape {tuple(adversarial.shape)} for images of {tuple(clean.shape)}")
    images = adversarial.detach().to(dtype=torch.float32, memory_format=torch.contiguous_format)
    not_finite = ~torch.isfinite(images).flatten(1).all(1)
    images = torch.where(not_finite[:, None, None, None], clean, images)
    low, high = -images.flatten(1).amin(1), images.flatten(1).amax(1) - 1
    out_of_box = torch.maximum(low, high) > TOLERANCE
    images = images.clamp(0, 1)
    out_of_ball = torch.zeros_like(not_finite)
    if budget is not None:
        out_of_ball = (images - clean).flatten(1).abs().amax(1) > budget + TOLERANCE
        projected = torch.minimum(torch.maximum(images, clean - budget), clean + budget).clamp(0, 1)
        images = torch.where(out_of_ball[:, None, None, None], projected, images)
    moved = (images - clean).flatten(1).abs().amax(1) > 0
    return Verified(images, not_finite, out_of_box, out_of_ball, moved)


def norms(clean: Tensor, adversarial: Tensor) -> dict[str, Tensor]:
    """Size of the perturbation of each image in the usual norms."""
    difference = (adversarial - clean).flatten(1).double()
    return {
        "linf": difference.abs().amax(1),
        "l2": difference.norm(dim=1),
        "l1": difference.abs().sum(1),
        "l0": (difference != 0).sum(1),
    }
