"""Verify the images that an attack returns: every image is checked, and corrected or rejected."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmark.attacks.bounds import Bound
from defenses.members.doubles import in_float64

TOLERANCE = 1e-6
"""How far a float32 attack may overshoot the box or an L∞ ball by rounding."""
ROUNDING = 2.0**-23
"""Largest change of a scalar in [0, 1] by rounding to float32, when an attack adds a perturbation and clips."""


@dataclass(frozen=True)
class Verified:
    """Images that are finite, inside [0, 1] and inside the ball, and the corrections of each image."""

    images: Tensor
    not_finite: Tensor
    out_of_box: Tensor
    out_of_ball: Tensor
    moved: Tensor


def verify(clean: Tensor, adversarial: Tensor, bound: Bound | None) -> Verified:
    """Check adversarial images against their clean images.

    An image that is not finite is replaced by the clean image: the attack failed on it. An image outside the box or
    the ball is projected back, and counts if it still fools the model.
    """
    if adversarial.shape != clean.shape:
        raise ValueError(
            f"the attack returned shape {tuple(adversarial.shape)} for images of shape {tuple(clean.shape)}; "
            "it must return images of the same shape"
        )
    images = adversarial.detach().to(dtype=torch.float32, memory_format=torch.contiguous_format)
    not_finite = ~torch.isfinite(images).flatten(1).all(1)
    images = torch.where(not_finite[:, None, None, None], clean, images)
    low, high = -images.flatten(1).amin(1), images.flatten(1).amax(1) - 1
    out_of_box = torch.maximum(low, high) > TOLERANCE
    images = images.clamp(0, 1)
    out_of_ball = torch.zeros_like(not_finite)
    if bound is not None:
        out_of_ball = outside(clean, images, bound)
        images = torch.where(out_of_ball[:, None, None, None], project(clean, images, bound), images)
    moved = (images - clean).flatten(1).abs().amax(1) > 0
    return Verified(images, not_finite, out_of_box, out_of_ball, moved)


def outside(clean: Tensor, images: Tensor, bound: Bound) -> Tensor:
    """Mask of images outside the bound around their clean images, beyond rounding."""
    difference = (images - clean).flatten(1)
    if bound.norm == "linf":
        return difference.abs().amax(1) > bound.radius + TOLERANCE
    if bound.norm == "l0":  # a change within rounding error does not count
        return (difference.abs() > TOLERANCE).sum(1) > bound.radius
    scalars, relative = difference.shape[1], bound.radius * TOLERANCE
    if bound.norm == "l2":
        far = in_float64(difference).norm(dim=1) > bound.radius + relative + ROUNDING * scalars**0.5
    else:
        far = in_float64(difference).abs().sum(1) > bound.radius + relative + ROUNDING * scalars
    return far.to(clean.device)


def project(clean: Tensor, images: Tensor, bound: Bound) -> Tensor:
    """The images projected into the ball, then into [0, 1]; the second projection does not leave the ball."""
    if bound.norm == "linf":
        return torch.minimum(torch.maximum(images, clean - bound.radius), clean + bound.radius).clamp(0, 1)
    difference = in_float64((images - clean).flatten(1))
    if bound.norm == "l2":
        inside = difference * (bound.radius / difference.norm(dim=1, keepdim=True).clamp_min(bound.radius))
    elif bound.norm == "l1":
        inside = _project_l1(difference, bound.radius)
    else:
        inside = _largest(difference, int(bound.radius))
    return (clean + inside.view_as(clean).to(clean)).clamp(0, 1)


def _project_l1(difference: Tensor, radius: float) -> Tensor:
    """The nearest point of the L1 ball: every entry shrinks by one threshold, found among the sorted sizes."""
    sizes = difference.abs()
    ordered = sizes.sort(dim=1, descending=True).values
    counts = torch.arange(1, sizes.shape[1] + 1, device=sizes.device, dtype=sizes.dtype)
    thresholds = (ordered.cumsum(1) - radius) / counts
    last = ((ordered > thresholds) * counts).argmax(1, keepdim=True)
    threshold = thresholds.gather(1, last).clamp_min(0)
    return difference.sign() * (sizes - threshold).clamp_min(0)


def _largest(difference: Tensor, count: int) -> Tensor:
    """The ``count`` largest entries of each row; the other entries are 0."""
    kept = difference.abs().topk(min(count, difference.shape[1]), dim=1).indices
    return torch.zeros_like(difference).scatter(1, kept, difference.gather(1, kept))


def norms(clean: Tensor, adversarial: Tensor) -> dict[str, Tensor]:
    """Norms of the perturbation of each image: L∞, L2, L1 and L0."""
    difference = in_float64((adversarial - clean).flatten(1))
    return {
        "linf": difference.abs().amax(1),
        "l2": difference.norm(dim=1),
        "l1": difference.abs().sum(1),
        "l0": (difference != 0).sum(1),
    }
