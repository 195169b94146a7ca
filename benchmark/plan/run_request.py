"""The request for a run: a preset, the images, the seeds, the device and the folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.cells.cell import Order
from benchmark.evaluations.task import Amount
from benchmark.findings.decisions import Until
from benchmark.plan.presets import Preset

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Request:
    """A run of a preset as the user requests it."""

    preset: Preset
    samples: int | str | None
    """A number of images, ``all`` for the paper's number, or None for a number that suits the device."""
    seeds: tuple[int, ...]
    device: torch.device
    out: Path
    command: str
    keep_images: bool = False
    """Keep every adversarial image that fools an ensemble."""
    acceleration: str = "folded"
    """How to make the copy that attacks see: one of `benchmark.harness.acceleration.MODES`."""
    surrogate: str | None = None
    """Defense spec or checkpoint of the surrogate of black-box attacks."""
    trust: bool = False
    """Whether models from outside may be programs, which can run code when they are loaded."""
    accept_changed: bool = False
    """Whether to evaluate ensembles that were trained with another version of a defense's file."""
    refusals: bool = False
    """If a library refuses a setting, the row gives the reason and the run continues."""
    surrogate_label: str = ""
    """The user's label of the surrogate; empty if there is none."""
    order: Preset | None = None
    """The preset before it was narrowed; its order is the order of the cells."""
    until: Until | None = None
    """When to stop early; images then come in random order."""
    figures: str = ""
    """File type of figures in addition to SVG and PNG."""
    remarks: tuple[str, ...] = ()
    """Lines to print before the first cell."""

    @property
    def taken(self) -> Order:
        """The order of the test images."""
        return "shuffled" if self.until else "file"

    def images(self, amount: Amount, test_size: int) -> int:
        """The number of test images, counted from the first."""
        if isinstance(self.samples, int):
            return self.samples
        everything = whole(amount, test_size)
        if self.samples == "all" or self.device.type != "cpu":
            return everything
        return min(amount.samples or everything, everything)


def whole(amount: Amount, test_size: int) -> int:
    """The paper's number of images."""
    return min(amount.paper_samples or test_size, test_size)
