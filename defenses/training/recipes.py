"""Recipes: everything about a training run but the defense, the data and the seed."""

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
"""What kind of images a recipe is for: 8×8 digits, MNIST and its kin, CIFAR and its kin."""


@dataclass(frozen=True)
class Recipe:
    """How an ensemble is trained. Loaded checkpoints carry it, so every number can be traced to it."""

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
    """Random translation, up to this fraction of the side, the edge repeated."""
    subpixel_shift: bool = False
    """Translate by any distance with bilinear interpolation, as Keras does, instead of whole pixels."""
    flip: bool = False
    """Mirror half of the images."""
    resolutions: tuple[float, ...] = (1.0,)
    """Scale of the images over training, in equal shares of the epochs; few epochs leave out the first ones."""
    strategy: Strategy = "simultaneous"
    """Section 3.1: all members on each batch; one after the other; or with one member's graph in memory."""
    freeze_patience: int = 0
    """Algorithm 1: stop updating a member that has not improved for so many epochs; 0 never does."""
    freeze_tolerance: float = 0.01
    """Relative fall of a member's epoch cross-entropy that counts as improvement."""
    select: Selection = "last"
    """Which epoch's weights are kept; ``test-accuracy`` is what the authors did, and leaks the test set."""
    validation: int = 0
    """Images held out of the training set, seeded."""
    train_images: int = 0
    """Train on the first so many images only; 0 takes all."""
    precision: Precision = "float32"
    """What the members compute in while they are trained; weights, objective and optimiser stay float32."""

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
        """Learning rate in ``epoch`` (from 0), ``progress`` being the share of all steps already made."""
        if self.schedule == "steps":
            return self.learning_rate * 0.1 ** sum(epoch >= milestone for milestone in self.milestones)
        warm_up = 0.25
        if progress < warm_up:
            return self.learning_rate * (0.04 + 0.96 * progress / warm_up)
        return self.learning_rate * max((1 - progress) / (1 - warm_up), 0.0)

    def scale_at(self, epoch: int) -> float:
        """Image scale in ``epoch`` (from 0); counted from the end, so that the last epoch has the last one."""
        left = self.epochs - 1 - epoch
        return self.resolutions[-1 - left * len(self.resolutions) // self.epochs]

    def batch_count(self, images: int) -> int:
        """Batches per epoch; a last batch of one image is left out, batch norm needs two."""
        full, rest = divmod(images, self.batch_size)
        return max(full + (rest > 1), 1)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for metadata."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(self).items()}


OLDER_RECIPES = {"precision": "float32", "optimiser": "adam"}
"""What recipes did not say before they had a setting for it."""


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
    """Few epochs for a CPU: one-cycle learning rate, and small images first where they are large enough."""
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
    """The ensembles that come with the project: whole images from the first epoch, long enough for 92 % on CIFAR-10.

    The small images of `fast` train a network that FGSM breaks more often than the paper's (docs/training.md).
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
"""Updates of the weights that a training on a user's images makes at least; docs/training.md has the measurement."""


def own_recipe(name: str, look: Look, images: int, **changes: Any) -> Recipe:
    """A named recipe for a dataset of the user's: enough epochs for its size, whole images, and no mirrored ones.

    A mirrored image may have another class, and small images may not show one.
    """
    chosen = find_recipe(name, look, flip=False, resolutions=(1.0,))
    given = {key: value for key, value in changes.items() if value is not None}
    epochs = given.pop("epochs", None)
    chosen = dataclasses.replace(chosen, **given)
    needed = -(-ENOUGH_STEPS // chosen.batch_count(chosen.train_images or max(images, 2)))
    longer = max(chosen.epochs, needed)
    milestones = tuple(milestone * longer // chosen.epochs for milestone in chosen.milestones)
    return dataclasses.replace(chosen, epochs=epochs or longer, milestones=milestones)
