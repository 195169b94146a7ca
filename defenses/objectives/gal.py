"""Gradient alignment loss (GAL): reduces the similarity of the members' input gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from defenses.objectives.base import Defense, Terms, at_least, cross_entropy, several_members

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from defenses.members.ensemble import Ensemble


@dataclass(frozen=True)
class GAL(Defense):
    """Gradient alignment loss (Kariyappa & Qureshi 2019): penalises similar input gradients of the members.

    Mean of the members' cross-entropies + weight · log Σ_{i<j} exp cos(g_i, g_j), with Gaussian noise on
    every other image. Its authors trained networks with leaky ReLUs: ``--network "resnet20(leak=0.1)"``.
    """

    in_bfloat16: ClassVar[bool] = True

    weight: float = 0.5
    noise: float = 0.045

    def __post_init__(self) -> None:
        at_least("weight", self.weight, 0)
        at_least("noise", self.noise, 0)

    def check(self, members: int, classes: int) -> None:
        several_members("gal", members, "compares the gradients of members")

    def batch(
        self, ensemble: Ensemble, images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        import torch

        from defenses.training.distributed import drawn

        noisy = images.clone()
        noise = drawn(torch.randn, images[::2].shape, generator).to(images)
        noisy[::2] = (images[::2] + self.noise * noise).clamp(0, 1)
        return noisy, labels

    def forward(self, ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Terms]:
        from defenses.objectives.input_gradients import gradient_cosines, loss_gradients

        logits, gradients = loss_gradients(ensemble, images, labels)
        coherence = gradient_cosines(gradients).logsumexp(0)
        return logits, {"ce": cross_entropy(logits, labels).mean(0), "coherence": self.weight * coherence}
