"""Intervals and tests for accuracies measured on a finite set of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special  # scipy.stats has the same functions, and takes a third of a second to import

from benchmark.findings import sequential

SIGNIFICANT = 0.05
"""Significance level of the tests in tables and sentences."""


def accuracy_interval(correct: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper–Pearson interval of a proportion: its coverage is at least ``confidence`` for any number of images."""
    tail = (1 - confidence) / 2
    low = special.betaincinv(correct, count - correct + 1, tail) if correct else 0.0
    high = special.betaincinv(correct + 1, count - correct, 1 - tail) if correct < count else 1.0
    return float(low), float(high)


def mean_interval(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of the mean of values in [0, 1]: Clopper–Pearson if all are 0 or 1, else the betting interval.

    A prediction of a randomised model is correct with a probability, but Clopper–Pearson needs counts. The betting
    interval (`benchmark.findings.sequential`) covers the mean of any values in [0, 1], draws included.
    """
    found = np.asarray(values, dtype=float)
    if is_certain(found):
        return accuracy_interval(int(found.sum()), len(found), confidence)
    known = sequential.interval(found, alpha=1 - confidence, fixed=True)
    return known.low, known.high


def paired_test(first: ArrayLike, second: ArrayLike) -> float:
    """Two-sided p-value that two models, on the same images, are right equally often.

    McNemar's exact test if every value is 0 or 1. If some are probabilities, the betting test of a mean difference of
    0, which holds for any values in [0, 1].
    """
    one, other = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if is_certain(one) and is_certain(other):
        return mcnemar(one, other)
    return sequential.refutation(one - other)


def is_certain(values: ArrayLike) -> bool:
    """True if every value is 0 or 1, so that no prediction is random."""
    found = np.asarray(values, dtype=float)
    return bool(((found == 0) | (found == 1)).all())


def mcnemar(first: ArrayLike, second: ArrayLike) -> float:
    """Exact two-sided p-value that two classifiers, on the same images, are right equally often."""
    one, other = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    only_first, only_second = int((one & ~other).sum()), int((~one & other).sum())
    discordant = only_first + only_second
    return min(1.0, 2 * float(special.bdtr(min(only_first, only_second), discordant, 0.5)))


def paired_difference(first: ArrayLike, second: ArrayLike, confidence: float = 0.95) -> tuple[float, float, float]:
    """Accuracy of ``first`` minus that of ``second`` on the same images, with Agresti and Min's interval.

    If some values are probabilities, the interval is the betting interval of the mean difference.
    """
    if not (is_certain(first) and is_certain(second)):
        found = sequential.interval(
            np.asarray(first, dtype=float) - np.asarray(second, dtype=float), low=-1.0, alpha=1 - confidence, fixed=True
        )
        return found.mean, found.low, found.high
    one, other = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    count = len(one)
    if count == 0:
        return 0.0, -1.0, 1.0
    only_first, only_second = int((one & ~other).sum()), int((~one & other).sum())
    difference = (only_first - only_second) / count
    # half an observation is added to each cell of the 2 × 2 table
    centre = (only_first - only_second) / (count + 2)
    spread = ((only_first + only_second + 1) - (only_first - only_second) ** 2 / (count + 2)) ** 0.5 / (count + 2)
    half = float(special.ndtri(0.5 + confidence / 2)) * spread
    return difference, max(centre - half, -1.0), min(centre + half, 1.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment of several p-values, in the order given."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(p_values))
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return [float(value) for value in adjusted]


class Spread(NamedTuple):
    """Mean and standard deviation of a few values, and Student's interval of the mean; NaN if it is not defined."""

    mean: float
    deviation: float
    low: float
    high: float


def spread(values: ArrayLike, confidence: float = 0.95) -> Spread:
    """The spread of the values of several seeds; one value, or equal values, have no interval."""
    numbers = np.asarray(values, dtype=float)
    mean, deviation = float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else float("nan")
    if not _varies(numbers):
        return Spread(mean, deviation, float("nan"), float("nan"))
    half = float(special.stdtrit(len(numbers) - 1, 0.5 + confidence / 2)) * deviation / len(numbers) ** 0.5
    return Spread(mean, deviation, mean - half, mean + half)


def paired_t(differences: ArrayLike) -> float:
    """Two-sided p-value of Student's t-test that paired differences, one per training seed, are zero on average.

    The test is over trainings, so it concerns a defense and not one ensemble that it trained. If the differences do not
    vary, their variance cannot be estimated, and the p-value is 1.
    """
    numbers = np.asarray(differences, dtype=float)
    if not _varies(numbers):
        return 1.0
    statistic = numbers.mean() / (numbers.std(ddof=1) / len(numbers) ** 0.5)
    return 2 * float(special.stdtr(len(numbers) - 1, -abs(statistic)))


def least_significant(seeds: int) -> float:
    """The smallest significant mean difference of `paired_t`, in standard deviations over this number of seeds."""
    return float(special.stdtrit(seeds - 1, 1 - SIGNIFICANT / 2)) / seeds**0.5


def _varies(numbers: NDArray[np.float64]) -> bool:
    return len(numbers) > 1 and float(np.ptp(numbers)) > 1e-9
