"""DVERGE: trains each member on images that exploit the weaknesses of the others."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from defenses.errors import BadInput
from defenses.objectives.base import Defense, Place, Terms, at_least, cross_entropy, several_members
from defenses.objectives.ece import Baseline

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from defenses.members.ensemble import Ensemble


@dataclass(frozen=True)
class DVERGE(Defense):
    """DVERGE (Yang et al. 2020): each member is trained on the weaknesses of the others, Σ_{j≠i} CE_i(x'_j, y).

    x'_j is x, changed within ±eps so that member j's features at layer ``layer``, before its ReLU, approach those of
    another image of the batch. The layer is drawn anew for every epoch. The images x' do not distinguish untrained
    members, so the first share ``warm_up`` of the epochs trains a baseline, unless training starts from a checkpoint.
    All x' of a batch are computed before any member is updated. Updating the members together is therefore the same as
    updating them in turn, as the authors do.
    """

    makes_images: ClassVar[bool] = True
    in_bfloat16: ClassVar[bool] = True

    eps: float = 0.07
    steps: int = 10
    warm_up: float = 0.25
    layer: int = field(default=0, metadata={"spec": False})
    """Counted from 0."""

    def __post_init__(self) -> None:
        if not 0 < self.eps <= 1:
            raise BadInput(f"eps of dverge is {self.eps:g}; it must lie in (0, 1]")
        at_least("steps", self.steps, 1)
        if not 0 <= self.warm_up < 1:
            raise BadInput(f"warm_up of dverge is {self.warm_up:g}; this share of the epochs must lie in [0, 1)")

    @property
    def cost(self) -> float:  # type: ignore[override]
        return self.steps / 3 + 2  # a distillation step uses half of the network on average, and no weight gradients

    def check(self, members: int, classes: int) -> None:
        several_members("dverge", members, "trains members on each other")

    def at(self, place: Place, ensemble: Ensemble, generator: torch.Generator) -> Defense:
        import torch

        from defenses.members.layers import depth

        image = ensemble.normalise(torch.zeros_like(ensemble.mean))[None]
        layers = min(depth(member, image) for member in ensemble.members)
        layer = int(torch.randint(layers, (), generator=generator))
        if not place.from_checkpoint and place.epoch < round(self.warm_up * place.epochs):
            return Baseline()
        return replace(self, layer=layer)

    def forward(self, ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Terms]:
        import torch

        distilled = [self.distil(ensemble, member, images) for member in range(len(ensemble))]
        logits, losses = [], []
        for i, member in enumerate(ensemble.members):
            others = [
                ensemble.logits_of(member, ensemble.normalise(moved)) for j, moved in enumerate(distilled) if j != i
            ]
            logits.append(torch.stack(others).mean(0))
            losses.append(cross_entropy(torch.stack(others), labels).sum(0))
        return torch.stack(logits), {"distilled": torch.stack(losses).sum(0)}

    def distil(self, ensemble: Ensemble, member: int, images: Tensor) -> Tensor:
        """x': each image, changed by sign steps with momentum to give a member the features of the previous image.

        Batches are drawn at random, so the previous image is a random image of the training set.
        """
        import torch

        from defenses.members.ensemble import batch_norm_mode
        from defenses.members.layers import before_relu
        from defenses.training.distributed import row_before

        network = ensemble.members[member]

        def features(batch: Tensor) -> Tensor:
            with ensemble.autocast():
                return next(islice(before_relu(network, ensemble.normalise(batch)), self.layer, None)).float()

        with batch_norm_mode(ensemble, "as set"):
            with torch.no_grad():
                target = row_before(features(images))
            moved, momentum = images, torch.zeros_like(images)
            for _ in range(self.steps):
                moved = moved.detach().requires_grad_()
                distance = (features(moved) - target).square().sum()
                (gradient,) = torch.autograd.grad(distance, moved)
                size = gradient.abs().sum((1, 2, 3), keepdim=True)
                momentum = momentum + gradient / size.clamp_min(1e-30)
                moved = moved.detach() - self.eps / self.steps * momentum.sign()
                moved = (images + (moved - images).clamp(-self.eps, self.eps)).clamp(0, 1)
        return moved.detach()
