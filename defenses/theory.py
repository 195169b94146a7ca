"""The optimum of ADP: the paper's Theorem 2 in both directions, and Corollary 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from defenses.errors import BadInput


def alpha_from_confidence(members: int, classes: int, confidence: float) -> float:
    """The α whose optimal mean true-class probability is ``confidence`` (Theorem 2, eq. 7)."""
    _check(members, classes)
    if not 1 / classes < confidence < 1:
        raise BadInput(f"confidence {confidence:g} is out of range; it must lie between 1/classes and 1")
    return members / (confidence * math.log(confidence * (classes - 1) / (1 - confidence)))


def confidence_from_alpha(members: int, classes: int, alpha: float) -> float:
    """The optimal mean true-class probability for α (Theorem 2, eq. 7 solved for the probability)."""
    from scipy.optimize import brentq  # slow to import, and not needed for `adp-bench alpha`

    _check(members, classes)
    if not alpha > 0 or not math.isfinite(alpha):
        raise BadInput(f"alpha {alpha:g} is out of range; Theorem 2 needs a positive number")

    def excess(odds: float) -> float:  # in log-odds, so that confidences within 1e-16 of one are still reached
        confidence = 1 / (1 + math.exp(-odds))
        return alpha / members * confidence * (odds + math.log(classes - 1)) - 1

    lowest = -math.log(classes - 1)  # uniform prediction: the logarithm in eq. 7 vanishes
    root = brentq(excess, lowest, 2 * members / alpha + 2, xtol=1e-14)
    return 1 / (1 + math.exp(-root))


def optimal_predictions(
    members: int, classes: int, alpha: float, label: int = 0, partition: Sequence[Sequence[int]] | None = None
) -> NDArray[np.float64]:
    """Corollary 1's optimum for α, β > 0 when K divides L−1: one row of probabilities per member.

    ``partition`` lists the wrong classes of each member; by default, each member gets the next classes in order.
    """
    _check(members, classes)
    if not 0 <= label < classes:
        raise BadInput(f"label is {label}; with {classes} classes it must lie between 0 and {classes - 1}")
    if (classes - 1) % members:
        raise BadInput(f"{members} does not divide {classes - 1}; Corollary 1 needs members that divide classes-1")
    others = [index for index in range(classes) if index != label]
    share = (classes - 1) // members
    if partition is None:
        partition = [others[k * share : (k + 1) * share] for k in range(members)]
    if sorted(index for part in partition for index in part) != others or {len(part) for part in partition} != {share}:
        raise BadInput(f"partition must split the classes other than {label} into {members} sets of {share}")
    confidence = confidence_from_alpha(members, classes, alpha)
    predictions = np.zeros((members, classes))
    predictions[:, label] = confidence
    for row, part in zip(predictions, partition, strict=True):
        row[list(part)] = members * (1 - confidence) / (classes - 1)
    return predictions


def _check(members: int, classes: int) -> None:
    if members < 1:
        raise BadInput(f"members is {members}; an ensemble has at least 1")
    if classes < 2:
        raise BadInput(f"classes is {classes}; at least 2 are needed")
