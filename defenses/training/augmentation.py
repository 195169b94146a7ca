"""Random shifts and mirror images, vectorised over the batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from defenses.training.distributed import drawn
from defenses.training.recipes import Recipe


def augment(images: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """Each image shifted by its own distance (edges repeated) and mirrored with probability one half."""
    count, _, height, width = images.shape
    if not recipe.shift and not recipe.flip:
        return images
    size = torch.tensor([width, height], dtype=torch.float32)
    distance = (2 * drawn(torch.rand, (count, 2), generator) - 1) * recipe.shift * size
    if not recipe.subpixel_shift:
        distance = distance.round()
    mirrored = (drawn(torch.rand, (count,), generator) < 0.5) & recipe.flip
    transform = torch.zeros(count, 2, 3)
    transform[:, 0, 0] = torch.where(mirrored, -1.0, 1.0)
    transform[:, 1, 1] = 1.0
    transform[:, :, 2] = 2 * distance / size  # grid coordinates run from -1 to 1 over the side
    grid = functional.affine_grid(transform.to(images.device), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def resize(images: Tensor, scale: float) -> Tensor:
    """Images (or one image, C × H × W) scaled to a fraction of their side, with antialiasing."""
    if scale == 1.0:
        return images
    batch = images if images.ndim == 4 else images[None]
    side = [max(round(length * scale), 8) for length in batch.shape[-2:]]
    small = functional.interpolate(batch, size=side, mode="bilinear", antialias=True, align_corners=False)
    return small if images.ndim == 4 else small[0]
