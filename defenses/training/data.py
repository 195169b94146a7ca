"""The images a training run may see."""

from __future__ import annotations

from dataclasses import dataclass, replace

from defenses.members.images import LabelledImages
from defenses.members.networks import Shape


@dataclass(frozen=True)
class TrainingData:
    """A dataset with its splits; ``validation`` is None unless the recipe holds out images."""

    name: str
    classes: int
    train: LabelledImages
    test: LabelledImages
    validation: LabelledImages | None = None
    checksum: str = ""

    @property
    def shape(self) -> Shape:
        """Channels, height and width of the images."""
        channels, height, width = self.train.pixels.shape[1:]
        return channels, height, width

    def first(self, images: int) -> TrainingData:
        """The same data with only the first ``images`` training images; 0 keeps all."""
        return replace(self, train=self.train.subset(slice(0, images or None)))
