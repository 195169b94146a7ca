"""Adaptive diversity promoting training (ADP): the defense of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from defenses.errors import BadInput
from defenses.objectives.base import Defense, Terms, at_least, cross_entropy, positive

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ADP(Defense):
    """Adaptive diversity promoting training: ECE − α·entropy of the mean − β·log ensemble diversity (eq. 6)."""

    alpha: float
    beta: float
    temperature: float = 1.0

    def __post_init__(self) -> None:
        at_least("alpha", self.alpha, 0)
        at_least("beta", self.beta, 0)
        positive("temperature", self.temperature)

    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        from defenses.members.diversity import ensemble_entropy, log_ensemble_diversity

        logits = logits / self.temperature
        terms = {"ece": cross_entropy(logits, labels).sum(0)}
        if self.alpha:
            terms["entropy"] = -self.alpha * ensemble_entropy(logits)
        if self.beta:
            terms["led"] = -self.beta * log_ensemble_diversity(logits, labels)
        return terms

    def check(self, members: int, classes: int) -> None:
        if self.beta and members > classes - 1:
            raise BadInput(
                f"{members} members cannot have linearly independent predictions over {classes - 1} wrong classes, "
                f"so ADP's diversity is zero by construction; use at most {classes - 1} members or beta=0"
            )
