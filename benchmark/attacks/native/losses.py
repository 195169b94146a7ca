"""Losses that attacks maximise, one value per image; a class is masked with −∞, never by multiplication.

Multiplying the logit of a class by 0 does not mask it if the logits are log-probabilities: 0 is then the largest value.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits (N, L), labels (N,)) → (N,): larger if the prediction is further from the label."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy."""
    return functional.cross_entropy(logits, labels, reduction="none")


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Logit of the best other class minus the label's logit: above 0, the image is misclassified."""
    own = logits.gather(-1, labels[:, None])
    others = logits.scatter(-1, labels[:, None], -float("inf"))
    return others.amax(-1) - own.squeeze(-1)


def logits_ratio(logits: Tensor, labels: Tensor) -> Tensor:
    """Margin over the gap between the first and the third class (DLR): the scale of the logits does not matter."""
    ordered = logits.sort(dim=-1, descending=True).values
    return margin(logits, labels) / (ordered[:, 0] - ordered[:, min(2, logits.shape[-1] - 1)] + 1e-12)


def probability_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Margin in probabilities (PMA): probability of the best other class minus the label's, from -1 to 1.

    Computed as p_j + Σ_{i≠y} p_i − 1, which equals p_j − p_y. In this form, the derivative by z_y is a sum of small
    numbers. In the other form, it is a difference of two numbers near 1, which is 0 in float32 for a certain label.
    """
    others = functional.softmax(logits, -1).scatter(-1, labels[:, None], 0.0)
    return others.amax(-1) + others.sum(-1) - 1


LOSSES: dict[str, Loss] = {
    "ce": cross_entropy,
    "margin": margin,
    "dlr": logits_ratio,
    "pma": probability_margin,
}
