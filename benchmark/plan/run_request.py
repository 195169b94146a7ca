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
    accept_changed: bool = False
    """Whether to evaluate ensembles that another version of a defense's file trained."""
    refusals: bool = False
    """A setting that a library cannot honour is a row that says so, not the end of the run."""
    surrogate_label: str = ""
    """What to call it, where the user said so."""
    order: Preset | None = None
    """The preset before it was narrowed: cells stand in its order."""
    until: Until | None = None
    """When to stop early; images then come in random order."""
    figures: str = ""
    """A kind of file that figures are written as, beside SVG and PNG."""
    remarks: tuple[str, ...] = ()
    """Lines to say before the first cell."""

    @property
    def taken(self) -> Order:
        """In which order test images are taken."""
        return "shuffled" if self.until else "file"

    def images(self, amount: Amount, test_size: int) -> int:
        """The number of test images to take, from the first on."""
        if isinstance(self.samples, int):
            return self.samples
        everything = whole(amount, test_size)
        if self.samples == "all" or self.device.type != "cpu":
            return everything
        return min(amount.samples or everything, everything)


def whole(amount: Amount, test_size: int) -> int:
    """The paper's number of images."""
    return min(amount.paper_samples or test_size, test_size)
