"""Transferability reduced smooth ensembles (TRS): makes the members' input gradients dissimilar and small."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from defenses.errors import BadInput
from defenses.objectives.base import Defense, Place, Terms, at_least, cross_entropy, several_members

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from defenses.members.ensemble import Ensemble


@dataclass(frozen=True)
class TRS(Defense):
    """Transferability reduced smooth ensembles (Yang et al. 2021): dissimilar input gradients, small near the images.

    ECE + λ_a · mean_{i<j} |cos(g_i, g_j)| + λ_b · mean_k 2‖∇_x CE_k(x̂)‖². For every other image, x̂ is the image
    itself. For the rest, x̂ is found by sign ascent on the gradient norm: ``steps`` steps of size 2δ/steps inside a
    ball of radius δ. The radius δ grows over training from ``delta_first`` to ``delta_last``.
    """

    in_bfloat16: ClassVar[bool] = True

    lambda_a: float = 40.0
    lambda_b: float = 2.5
    delta_first: float = 0.01
    delta_last: float = 0.03
    steps: int = 6
    progress: float = field(default=0.0, metadata={"spec": False})
    """Completed share of training."""

    def __post_init__(self) -> None:
        at_least("lambda_a", self.lambda_a, 0)
        at_least("lambda_b", self.lambda_b, 0)
        if not 0 <= self.delta_first <= self.delta_last <= 1:
            raise BadInput(
                f"delta of trs grows from {self.delta_first:g} to {self.delta_last:g}; "
                "set 0 ≤ delta_first ≤ delta_last ≤ 1"
            )
        at_least("steps", self.steps, 1)

    def check(self, members: int, classes: int) -> None:
        several_members("trs", members, "compares the gradients of members")

    def at(self, place: Place, ensemble: Ensemble, generator: torch.Generator) -> TRS:
        return replace(self, progress=place.epoch / max(place.epochs - 1, 1))

    @property
    def delta(self) -> float:
        """Radius of the ball at this point of training."""
        return self.delta_first + (self.delta_last - self.delta_first) * self.progress

    def forward(self, ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Terms]:
        from defenses.members.ensemble import batch_norm_mode
        from defenses.objectives.input_gradients import gradient_cosines, loss_gradients, steepest

        logits, gradients = loss_gradients(ensemble, images, labels)
        moved = slice(1, None, 2)  # every other image, so that half of advt's adversarial images are included
        with batch_norm_mode(ensemble, "as set"):
            steep = steepest(ensemble, images[moved], labels[moved], self.delta, self.steps)
            steep_gradients = loss_gradients(ensemble, steep, labels[moved])[1]
        slope = gradients.square().sum(-1)
        slope[:, moved] = steep_gradients.square().sum(-1)
        return logits, {
            "ece": cross_entropy(logits, labels).sum(0),
            "similarity": self.lambda_a * gradient_cosines(gradients).abs().mean(0),
            "slope": self.lambda_b * 2 * slope.mean(0),
        }
