"""Recipes: the settings of a training run, without the defense, the data and the seed."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from defenses.errors import BadInput
from defenses.registry import did_you_mean

Schedule = Literal["one-cycle", "steps"]
Optimiser = Literal["adam", "sgd"]
Strategy = Literal["simultaneous", "independent", "sequential"]
Selection = Literal["last", "validation", "test-accuracy"]
Precision = Literal["float32", "bfloat16"]
Look = Literal["tiny", "grey", "colour"]
"""The kind of images of a recipe: 8×8 digits, images like MNIST, images like CIFAR."""


@dataclass(frozen=True)
class Recipe:
    """The settings of a training. Checkpoints store them, so that every number can be traced to its recipe."""

    name: str
    epochs: int
    batch_size: int
    learning_rate: float
    schedule: Schedule
    milestones: tuple[int, ...] = ()
    """Epochs after which ``steps`` divides the learning rate by ten."""
    optimiser: Optimiser = "adam"
    """``adam``, or ``sgd`` with Nesterov momentum 0.9."""
    adam_eps: float = 1e-8
    adam_beta2: float = 0.999
    weight_decay: float = 0.0
    """L2 on convolution kernels, added to their gradient (2λ for Keras' λ·‖w‖²)."""
    shift: float = 0.1
    """Random translation by up to this fraction of the side; the edge is repeated."""
    subpixel_shift: bool = False
    """Translate by any distance with bilinear interpolation, as Keras does, instead of whole pixels."""
    flip: bool = False
    """Mirror half of the images."""
    resolutions: tuple[float, ...] = (1.0,)
    """Image scales over training, in equal shares of the epochs; with few epochs, the first scales are left out."""
    strategy: Strategy = "simultaneous"
    """Section 3.1: train all members on each batch, one after the other, or with one member's graph in memory."""
    freeze_patience: int = 0
    """Algorithm 1: freeze a member that has not improved for this number of epochs; 0 never freezes."""
    freeze_tolerance: float = 0.01
    """Relative decrease below a member's lowest epoch cross-entropy that counts as an improvement."""
    select: Selection = "last"
    """The epoch whose weights are kept; the authors used ``test-accuracy``, which leaks the test set."""
    validation: int = 0
    """Number of images held out of the training set, drawn by the seed."""
    train_images: int = 0
    """Number of training images, taken from the start of the training set; 0 takes all."""
    precision: Precision = "float32"
    """Precision of the members' computations in training; weights, objective and optimiser stay float32."""

    def __post_init__(self) -> None:
        for name, low in (
            ("epochs", 1),
            ("batch_size", 2),
            ("freeze_patience", 0),
            ("validation", 0),
            ("train_images", 0),
        ):
            if getattr(self, name) < low:
                raise BadInput(f"{name} is {getattr(self, name)}; it must be at least {low}")
        for name, choice in (
            ("schedule", Schedule),
            ("optimiser", Optimiser),
            ("strategy", Strategy),
            ("select", Selection),
            ("precision", Precision),
        ):
            if getattr(self, name) not in get_args(choice):
                value = getattr(self, name)
                raise BadInput(f"unknown {name} {value!r}; {did_you_mean(str(value), get_args(choice))}")
        if not 0 < self.learning_rate < math.inf:
            raise BadInput(f"learning_rate is {self.learning_rate:g}; it must be a number above 0")
        if self.select == "validation" and not self.validation:
            raise BadInput("select=validation needs images held out of the training set; give --validation N")

    def learning_rate_at(self, epoch: int, progress: float) -> float:
        """Learning rate in ``epoch`` (from 0); ``progress`` is the completed share of all steps."""
        if self.schedule == "steps":
            return self.learning_rate * 0.1 ** sum(epoch >= milestone for milestone in self.milestones)
        warm_up = 0.25
        if progress < warm_up:
            return self.learning_rate * (0.04 + 0.96 * progress / warm_up)
        return self.learning_rate * max((1 - progress) / (1 - warm_up), 0.0)

    def scale_at(self, epoch: int) -> float:
        """Image scale in ``epoch`` (from 0); the last epoch always has the last scale."""
        left = self.epochs - 1 - epoch
        return self.resolutions[-1 - left * len(self.resolutions) // self.epochs]

    def batch_count(self, images: int) -> int:
        """Batches per epoch; a last batch of one image is left out, because batch norm needs two."""
        full, rest = divmod(images, self.batch_size)
        return max(full + (rest > 1), 1)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for metadata."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(self).items()}


OLDER_RECIPES = {"precision": "float32", "optimiser": "adam"}
"""Values of settings that recipes of older versions did not store."""


def paper(look: Look) -> Recipe:
    """Section 4.1 and the authors' code: Adam, batch 64, 40 epochs on MNIST-like data and 180 on CIFAR."""
    return Recipe(
        name="paper",
        epochs=180 if look == "colour" else 40,
        batch_size=64,
        learning_rate=1e-3,
        schedule="steps",
        milestones=(80, 120, 160),
        adam_eps=1e-7,
        weight_decay=2e-4,
        subpixel_shift=True,
        flip=True,
    )


def fast(look: Look) -> Recipe:
    """Few epochs for a CPU: a one-cycle learning rate, and downscaled images first, except for tiny images."""
    if look == "tiny":
        return Recipe("fast", epochs=12, batch_size=64, learning_rate=1e-2, schedule="one-cycle", shift=0.0)
    if look == "colour":
        return Recipe(
            "fast",
            epochs=12,
            batch_size=128,
            learning_rate=5e-3,
            schedule="one-cycle",
            adam_beta2=0.99,
            weight_decay=1e-4,
            flip=True,
            resolutions=(0.625, 0.75, 1.0),
        )
    return Recipe(
        "fast",
        epochs=2,
        batch_size=128,
        learning_rate=5e-3,
        schedule="one-cycle",
        adam_beta2=0.99,
        resolutions=(0.5, 1.0),
    )


def reference(look: Look) -> Recipe:
    """The recipe of the project's own ensembles: full-size images from the first epoch, 92 % accuracy on CIFAR-10.

    FGSM fools a network trained by `fast`, with downscaled images, more often than the paper's (docs/training.md).
    """
    return dataclasses.replace(
        fast(look),
        name="reference",
        epochs={"tiny": 30, "grey": 12, "colour": 40}[look],
        resolutions=(1.0,),
        precision="bfloat16",
    )


RECIPES = {"paper": paper, "fast": fast, "reference": reference}


def find_recipe(name: str, look: Look, **changes: Any) -> Recipe:
    """A named recipe for images of a kind, with some settings changed; None means unchanged."""
    if name not in RECIPES:
        raise BadInput(f"unknown recipe {name!r}; {did_you_mean(name, RECIPES)}")
    return dataclasses.replace(RECIPES[name](look), **{k: v for k, v in changes.items() if v is not None})


ENOUGH_STEPS = 1000
"""Fewest weight updates of a training on a user's dataset; docs/training.md has the measurement."""


def own_recipe(name: str, look: Look, images: int, **changes: Any) -> Recipe:
    """A named recipe for a user's dataset: enough epochs for its size, full-size images, and no mirrored images.

    A mirrored image may belong to another class, and a downscaled image may not show its class.
    """
    chosen = find_recipe(name, look, flip=False, resolutions=(1.0,))
    given = {key: value for key, value in changes.items() if value is not None}
    epochs = given.pop("epochs", None)
    chosen = dataclasses.replace(chosen, **given)
    needed = -(-ENOUGH_STEPS // chosen.batch_count(chosen.train_images or max(images, 2)))
    longer = max(chosen.epochs, needed)
    milestones = tuple(milestone * longer // chosen.epochs for milestone in chosen.milestones)
    return dataclasses.replace(chosen, epochs=epochs or longer, milestones=milestones)
