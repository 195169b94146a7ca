"""BARRE: boosting of a randomised ensemble, in which one randomly drawn member predicts each image."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from defenses.members.combination import Combination, Random
from defenses.objectives.base import Defense, Place, Terms, cross_entropy
from defenses.objectives.margin_boosting import check_attack, joined

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from defenses.members.ensemble import Ensemble


@dataclass(frozen=True)
class _ExpectedLoss(Combination):
    """The mean of the members' log-probabilities; its cross-entropy is the members' mean. Used in attacks only.

    A second logarithm of the softmax changes no value. Its gradient keeps the signs where a probability rounds to 1.
    """

    name: ClassVar[str] = "expected-loss"

    def combine(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1).log_softmax(-1).mean(0)


@dataclass(frozen=True)
class BARRE(Defense):
    """Boosting of a randomised ensemble (Dbouk and Shanbhag 2023): members are added one after the other.

    Each new member minimises its cross-entropy on PGD images of all members so far, including itself. The attack
    maximises the mean cross-entropy of these members. In the trained ensemble, one member predicts each image; all
    members are drawn with equal probability (``combine=random``).
    """

    boosts: ClassVar[bool] = True
    attacks: ClassVar[bool] = True
    combine: ClassVar[Combination] = Random()

    eps: float = 8 / 255
    steps: int = 10
    finished: Any = field(default=None, compare=False, metadata={"spec": False})
    """The ensemble of the members that are trained already; None for the first member."""

    def __post_init__(self) -> None:
        check_attack("barre", self.eps, self.steps)

    @property
    def cost(self) -> float:  # type: ignore[override]
        return 1.0 + self.steps

    def at(self, place: Place, ensemble: Ensemble, generator: torch.Generator) -> BARRE:
        return replace(self, finished=place.finished)

    def batch(
        self, ensemble: Ensemble, images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        from defenses.objectives.adversarial_training import random_sign_ascent

        so_far = joined(self.finished, ensemble)
        so_far.combination = _ExpectedLoss()
        return random_sign_ascent(so_far, images, labels, self.eps, self.steps, generator, normalised=False), labels

    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        return {"ece": cross_entropy(logits, labels).sum(0)}
