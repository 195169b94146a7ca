"""Ensemble cross-entropy (ECE): the baseline, and the first term of most other objectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from defenses.objectives.base import Defense, Terms, cross_entropy

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Baseline(Defense):
    """Ensemble cross-entropy (ECE): the members' cross-entropies, summed (eq. 2)."""

    separable: ClassVar[bool] = True

    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        return {"ece": cross_entropy(logits, labels).sum(0)}
