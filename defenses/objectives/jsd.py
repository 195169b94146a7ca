"""Jensen–Shannon divergence as a diversity term: the alternative that appendix B.1 rejects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from defenses.objectives.base import Defense, Terms, at_least, cross_entropy

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class JSD(Defense):
    """ECE − λ·JS-divergence (appendix B.1): a negative example; the authors show that it has no good optimum."""

    lambda_: float

    def __post_init__(self) -> None:
        at_least("lambda", self.lambda_, 0)

    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        from defenses.members.diversity import jensen_shannon

        return {"ece": cross_entropy(logits, labels).sum(0), "jsd": -self.lambda_ * jensen_shannon(logits)}
