"""Label smoothing: a control experiment for ADP, with its lower confidence but without its diversity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from defenses.errors import BadInput
from defenses.objectives.base import Defense, Terms

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LabelSmoothing(Defense):
    """ECE with smoothed labels: ``target`` on the true class, the rest spread evenly; a control for ADP."""

    separable: ClassVar[bool] = True

    target: float

    def __post_init__(self) -> None:
        if not 0 < self.target <= 1:
            raise BadInput(f"target of label-smoothing is {self.target:g}; it must lie in (0, 1]")

    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        log_probability = logits.log_softmax(-1)
        true = log_probability.gather(-1, labels.expand(len(logits), -1)[..., None]).squeeze(-1)
        others = log_probability.sum(-1) - true
        spread = (1 - self.target) / (logits.shape[-1] - 1)
        return {"ece": -(self.target * true + spread * others).sum(0)}
