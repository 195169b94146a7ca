"""The base class of defenses: the objective, the loss as the sum of its terms, and the training step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from defenses.errors import BadInput, RunFailed
from defenses.members.combination import USUAL, Combination

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from defenses.members.ensemble import Ensemble

Terms = dict[str, "Tensor"]
"""The parts of a loss by name, each one value per image (N,); the loss is the mean of their sum."""


class Place(NamedTuple):
    """The position of an epoch in training."""

    epoch: int
    """Counted from 0."""
    epochs: int
    from_checkpoint: bool = False
    """True if training started from a trained ensemble."""
    finished: Ensemble | None = None
    """The earlier members, if the members are trained one after the other."""


class Result(NamedTuple):
    """The outputs of a training step, for the progress display."""

    logits: Tensor
    labels: Tensor
    terms: Terms


def checked(terms: Terms, defense: Defense, images: int) -> Terms:
    """Check the loss terms of an objective: they need names, one value per image, and a gradient."""
    from torch import Tensor

    what = f"the objective of {type(defense).__name__}"
    if not isinstance(terms, dict) or not terms:
        raise BadInput(f"{what} gives a {type(terms).__name__}; it must give a dict of named loss terms")
    for name, term in terms.items():
        if not isinstance(term, Tensor) or term.shape != (images,):
            found = f"shape {tuple(term.shape)}" if isinstance(term, Tensor) else f"type {type(term).__name__}"
            raise BadInput(
                f"{what}: term {name!r} has {found}; it must have one value per image, shape ({images},): sum over the "
                "members, but do not average over the images"
            )
    if not any(term.requires_grad for term in terms.values()):
        raise BadInput(f"{what} has no gradient: compute it from the logits, without detach or no_grad")
    return terms


def total(terms: Terms) -> Tensor:
    """The loss: the mean over images of the sum of the terms. If it is not finite, RunFailed names the term.

    With several processes, each process gets its part; the mean of the parts is the loss of the whole batch.
    """
    import torch

    from defenses.members.doubles import in_float64
    from defenses.training.distributed import summed, world_size

    shapes = {name: tuple(term.shape) for name, term in terms.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 1 for shape in shapes.values()):
        told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise BadInput(f"every loss term must have one value per image; the shapes are: {told}")
    values = torch.stack(list(terms.values())).sum(0)
    if world_size() == 1:
        loss = whole = values.mean()
    else:
        whole, images = in_float64(summed(torch.stack([values.detach().sum(), values.new_tensor(len(values))])))
        loss, whole = values.sum() * (world_size() / images.item()), whole / images
    if not torch.isfinite(whole):
        infinite = summed(torch.stack([(~torch.isfinite(term)).any().float() for term in terms.values()]))
        guilty = [name for name, found in zip(terms, infinite, strict=True) if found] or list(terms)
        raise RunFailed(f"the loss is not finite: term {' and '.join(guilty)} is {whole.item()}")
    return loss


@dataclass(frozen=True)
class Defense:
    """Base of every defense: a frozen dataclass whose fields are the parameters of its spec.

    A new defense defines ``objective``. It can override other methods: ``batch`` changes the mini-batch, ``forward``
    computes the loss terms from the ensemble (for example from input gradients), ``step`` replaces the whole update,
    ``at`` changes the defense from epoch to epoch, and ``check`` refuses ensembles that it cannot train.
    """

    separable: ClassVar[bool] = False
    """True if the objective is a sum over the members, so that they can be trained independently."""

    makes_images: ClassVar[bool] = False
    """True if ``forward`` makes its own training images; advt then adds a loss on adversarial images."""

    attacks: ClassVar[bool] = False
    """True if the defense makes its own adversarial images, so that it cannot be combined with advt."""

    in_bfloat16: ClassVar[bool] = False
    """True if the defense has its own forward pass, which uses the members only in the precision of the ensemble."""

    boosts: ClassVar[bool] = False
    """True if the members are trained one after the other; ``Place.finished`` holds the earlier members."""

    combine: ClassVar[Combination] = USUAL
    """How the trained ensemble combines its members' outputs."""

    cost: ClassVar[float] = 1.0
    """Work per image, relative to the baseline; used only to estimate the time left."""

    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        """Loss terms from member logits (K, N, L) and labels (N,)."""
        raise BadInput(f"{type(self).__name__} defines neither objective nor forward; define one of them")

    def batch(
        self, ensemble: Ensemble, images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The training images and labels, made from the mini-batch."""
        return images, labels

    def forward(self, ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Terms]:
        """Member logits and loss terms of a batch; override it if the terms need more than the logits."""
        logits = ensemble.member_logits(images)
        terms = self.objective(logits, labels)
        return logits, checked(terms, self, len(labels)) if logits.requires_grad else terms

    def step(
        self,
        ensemble: Ensemble,
        optimiser: torch.optim.Optimizer,
        images: Tensor,
        labels: Tensor,
        generator: torch.Generator,
    ) -> Result:
        """One update of the weights; override it to replace the update, for example to update members in turn."""
        images, labels = self.batch(ensemble, images, labels, generator)
        logits, terms = self.forward(ensemble, images, labels)
        optimiser.zero_grad()
        total(terms).backward()
        optimiser.step()
        return Result(logits, labels, terms)

    def at(self, place: Place, ensemble: Ensemble, generator: torch.Generator) -> Defense:
        """The defense for one epoch; override it for a schedule, or for a random choice per epoch.

        ``generator`` depends only on the seed and the epoch, so a resumed run gets the same defense.
        """
        return self

    def check(self, members: int, classes: int) -> None:
        """Raise BadInput if this defense cannot train an ensemble with these numbers of members and classes."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every member on every image, (K, N)."""
    log_probability = logits.log_softmax(-1)
    return -log_probability.gather(-1, labels.expand(len(logits), -1)[..., None]).squeeze(-1)


def at_least(name: str, value: float, low: float) -> None:
    """Raise BadInput if a parameter is below ``low`` or not finite."""
    if not (math.isfinite(value) and value >= low):
        raise BadInput(f"{name} is {value:g}; it must be a number ≥ {low:g}")


def positive(name: str, value: float) -> None:
    """Raise BadInput if a parameter is not a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise BadInput(f"{name} is {value:g}; it must be a number > 0")


def several_members(name: str, members: int, reason: str) -> None:
    """Raise BadInput for an ensemble of one member; ``reason`` says why the defense needs several."""
    if members < 2:
        raise BadInput(f"{name} {reason}, so it needs at least 2 members; members is {members}")
