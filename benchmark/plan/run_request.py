"""What the user asked for: a preset, on which images, with which seeds, on which device, in which folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.evaluations.task import Amount
from benchmark.plan.presets import Preset

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Request:
    """What the user asked of a preset."""

    preset: Preset
    samples: int | str | None
    """A number of images, ``all`` for the paper's, or None for what suits the device."""
    seeds: tuple[int, ...]
    device: torch.device
    out: Path
    command: str
    keep_images: bool = False
    """Keep every adversarial image that fools an ensemble."""
    acceleration: str = "folded"
    """How the copy that is attacked is made."""
    surrogate: str | None = None
    """Defense spec or checkpoint of the ensemble that black-box attacks are made on."""
    trust: bool = False
    """Whether models from outside may be programs, which can run code when they are loaded."""
    refusals: bool = False
    """A setting that a library cannot honour is a row that says so, not the end of the run."""
    remarks: tuple[str, ...] = ()
    """Lines to say before the first cell."""

    def images(self, amount: Amount, test_size: int) -> int:
        """How many of the first test images to take."""
        if isinstance(self.samples, int):
            return self.samples
        everything = whole(amount, test_size)
        if self.samples == "all" or self.device.type != "cpu":
            return everything
        return min(amount.samples or everything, everything)


def whole(amount: Amount, test_size: int) -> int:
    """The paper's number of images."""
    return min(amount.paper_samples or test_size, test_size)
