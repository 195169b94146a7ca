"""Labelled images in memory: bytes, converted to floats in [0, 1] batch by batch, or floats in [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """``pixels`` uint8 (N, C, H, W), ``labels`` int64 (N,); a pixel equal to ``levels`` means 1.0.

    Float images are float32 pixels with ``levels`` 1, so their values are not changed.
    """

    pixels: Tensor
    labels: Tensor
    levels: int = 255

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """The chosen images as float32 in [0, 1]."""
        return self.pixels[rows].to(torch.float32) / self.levels

    def subset(self, rows: Tensor | slice) -> LabelledImages:
        """The chosen images and labels; if ``rows`` is a slice, the pixels are not copied."""
        return replace(self, pixels=self.pixels[rows], labels=self.labels[rows])

    def mean_image(self) -> Tensor:
        """Mean of all images (C, H, W) in [0, 1], accumulated in float64."""
        total = torch.zeros(self.pixels.shape[1:], dtype=torch.float64)
        for chunk in self.pixels.split(8192):
            total += chunk.to(torch.float64).sum(0)
        return (total / (len(self) * self.levels)).to(torch.float32)
