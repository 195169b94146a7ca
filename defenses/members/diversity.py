"""How much the members of an ensemble differ: the per-image quantities of the paper's section 3.

Every function takes member logits of shape (K, N, L): K members, N images, L classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from defenses.members.doubles import in_float64

RIDGE = 1e-6
"""Added to the diagonal of the Gram matrix before its determinant, as the authors' code does."""


def log_mean_probability(logits: Tensor) -> Tensor:
    """Log of the members' averaged softmax (eq. 1), (N, L); exact however small a probability is."""
    return torch.logsumexp(torch.log_softmax(logits, dim=-1), dim=0) - math.log(len(logits))


def entropy(log_probability: Tensor) -> Tensor:
    """Shannon entropy in nats over the last dimension."""
    return -(log_probability.exp() * log_probability).sum(-1)


def ensemble_entropy(logits: Tensor) -> Tensor:
    """Entropy of the averaged prediction, the first part of the ADP regulariser (eq. 6), (N,)."""
    return entropy(log_mean_probability(logits))


def without_label(values: Tensor, labels: Tensor) -> Tensor:
    """Drop entry ``labels[n]`` of every vector ``values[k, n]``, keeping the order: (K, N, L−1)."""
    position = torch.arange(values.shape[-1] - 1, device=values.device)
    index = position + (position >= labels[:, None]).long()
    return values.gather(-1, index.expand(len(values), -1, -1))


def non_maximal_predictions(logits: Tensor, labels: Tensor) -> Tensor:
    """Predictions without the labelled class, L2-normalised: the columns of M̃ in eq. 4, (K, N, L−1).

    The normalised vector does not depend on the labelled logit, so it is computed from the other
    logits alone. This avoids a division by probabilities that underflowed to zero.
    """
    others = without_label(logits, labels)
    scaled = (others - others.amax(-1, keepdim=True).detach()).exp()  # largest entry is 1: the norm is at least 1
    return scaled / scaled.norm(dim=-1, keepdim=True)


def log_ensemble_diversity(logits: Tensor, labels: Tensor) -> Tensor:
    """LED = log det(M̃ᵀM̃ + 1e-6·I) (eq. 4), (N,).

    The K×K algebra runs in float64, because the error of float32 near the minimum of LED is tenths of a nat.
    """
    vectors = in_float64(non_maximal_predictions(logits, labels)).transpose(0, 1)  # (N, K, L−1)
    gram = vectors @ vectors.mT
    ridge = RIDGE * torch.eye(len(logits), dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky_ex(gram + ridge).L  # NaN logits give NaN, not an error: the caller names the term
    return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).to(logits)


def jensen_shannon(logits: Tensor) -> Tensor:
    """Jensen–Shannon divergence between the members' predictions (appendix B.1), (N,)."""
    return ensemble_entropy(logits) - entropy(torch.log_softmax(logits, dim=-1)).mean(0)
