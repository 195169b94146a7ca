"""Tests that hold after every image: decisions between two models, and intervals, valid at any time.

An ordinary test holds for one number of images, fixed in advance. If one tests after every batch and stops at the first
p < 0.05, the error rate is far above 5 %. Here a gambler bets, image after image, against "the mean is m". If this
hypothesis is true, no strategy makes the gambler's capital grow on average, so the probability that it *ever* reaches
1/α is at most α (Ville's inequality). The interval contains the means that are not rejected yet; it covers the true
mean at all times simultaneously with probability 1 − α. The strategy is the hedged one of Waudby-Smith and Ramdas
(2024): half of the capital bets on a larger mean, half on a smaller one; the variance so far determines the stake.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Verdict = Literal["first leads", "second leads", "equal", "open"]
LARGEST_STAKE = 0.75
"""Largest share of the capital that can be lost on one image."""
STEP = 0.001
"""Means are tested on a grid of tenths of a point; an interval extends to the next rejected mean."""


def log_capitals(
    values: ArrayLike, mean: ArrayLike, low: float, alpha: float, fixed: bool = False
) -> tuple[Floats, Floats]:
    """Log of both halves of the capital after each value, (values, means): the bets on a larger and a smaller mean.

    ``values`` lie in [low, 1], in random order. The stake on a value depends only on the values before it. Each half
    starts at ½, so that both together start at 1. With ``fixed``, the number of values was fixed in advance, and the
    stakes are chosen for this number: they reject more means at the end.
    """
    found, means = np.asarray(values, dtype=np.float64), np.atleast_1d(np.asarray(mean, dtype=np.float64))
    stakes = _stakes(found, low, alpha, fixed)[:, None]
    up = np.minimum(stakes, LARGEST_STAKE / np.maximum(means - low, 1e-12))
    down = np.minimum(stakes, LARGEST_STAKE / np.maximum(1 - means, 1e-12))
    distance = found[:, None] - means
    larger, smaller = (np.log1p(bet).cumsum(0) - math.log(2) for bet in (up * distance, -down * distance))
    return larger, smaller


def _stakes(values: Floats, low: float, alpha: float, fixed: bool) -> Floats:
    """The stake on each value: larger if the values before it varied little, smaller the more values there are."""
    count = np.arange(1, len(values) + 1)
    span = 1 - low
    # the largest possible variance, a quarter of the squared span, counts as one value before the first
    means = (low + span / 2 + values.cumsum()) / (count + 1)
    squares = (span**2 / 4 + ((values - means) ** 2).cumsum()) / (count + 1)
    before = np.concatenate([[span**2 / 4], squares[:-1]])
    horizon = np.full(len(values), len(values)) if fixed else count * np.log1p(count)
    return np.asarray(np.sqrt(2 * math.log(2 / alpha) / (before * horizon)))


@dataclass(frozen=True)
class Sequence:
    """The mean after a number of images, and an interval that holds at all times simultaneously."""

    images: int
    mean: float
    low: float
    high: float


def interval(values: ArrayLike, low: float = 0.0, alpha: float = 0.05, fixed: bool = False) -> Sequence:
    """The mean of values in [low, 1], with the interval of all means that were never rejected; see `log_capitals`."""
    found = np.asarray(values, dtype=np.float64)
    if not len(found):
        return Sequence(0, math.nan, low, 1.0)
    grid = np.linspace(low, 1.0, round((1 - low) / STEP) + 1)
    kept = grid[(np.maximum(*log_capitals(found, grid, low, alpha, fixed)) < math.log(1 / alpha)).all(0)]
    mean = float(found.mean())
    if not len(kept):  # every mean was rejected at some time; the probability of this is at most α
        return Sequence(len(found), mean, mean, mean)
    return Sequence(len(found), mean, max(low, float(kept[0]) - STEP), min(1.0, float(kept[-1]) + STEP))


def refutation(differences: ArrayLike, alpha: float = 0.05) -> float:
    """p-value that the mean of a fixed number of differences in [-1, 1] is 0: one over the largest capital.

    The stakes are chosen for ``alpha``; the p-value is valid for any ``alpha``.
    """
    found = np.asarray(differences, dtype=np.float64)
    if not len(found):
        return 1.0
    capital = np.logaddexp(*log_capitals(found, 0.0, -1.0, alpha, fixed=True)).max()
    return float(np.exp(-max(0.0, capital)))


@dataclass(frozen=True)
class Decision:
    """The verdict of a comparison, and the number of images after which it was reached."""

    verdict: Verdict
    images: int


def decide(first: ArrayLike, second: ArrayLike, alpha: float = 0.05, margin: float = 0.0) -> Decision:
    """Which of two models is correct more often, from their outcomes on the same images in random order.

    A lead rejects a difference of 0 or of the other sign. "equal" rejects every difference of ``margin`` or more in
    either direction. A decision is wrong with probability α at most, for any number of looks.
    """
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    if not len(differences):
        return Decision("open", 0)
    larger, smaller = log_capitals(differences, [0.0, margin, -margin], -1.0, alpha)
    above, below = (np.logical_or.accumulate(half >= math.log(1 / alpha), axis=0) for half in (larger, smaller))
    outcomes: dict[Verdict, NDArray[np.bool_]] = {
        "first leads": above[:, 0],
        "second leads": below[:, 0],
        "equal": below[:, 1] & above[:, 2] & (margin > 0),
    }
    times = {verdict: int(seen.argmax()) + 1 for verdict, seen in outcomes.items() if seen.any()}
    if not times:
        return Decision("open", len(differences))
    verdict = min(times, key=times.__getitem__)
    return Decision(verdict, times[verdict])
