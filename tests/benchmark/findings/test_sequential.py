"""Decisions that may be looked at after every image: wrong no more often than promised, and not slow to come."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmark.findings.sequential import decide, interval, log_capitals
from benchmark.findings.statistics import mcnemar

Outcomes = NDArray[np.bool_]


def paired(
    rng: np.random.Generator, images: int, accuracy: float, lead: float, shared: float
) -> tuple[Outcomes, Outcomes]:
    """Outcomes of two models on the same images; on a share of the images both hang on the same luck."""
    luck = rng.random(images)
    others = np.where(rng.random(images) < shared, luck, rng.random(images))
    return luck < accuracy + lead, others < accuracy


@pytest.mark.parametrize(("chances", "low"), [({-1.0: 0.2, 0.0: 0.6, 1.0: 0.2}, -1.0), ({0.0: 0.7, 1.0: 0.3}, 0.0)])
def test_the_capital_does_not_grow_on_average_while_the_mean_is_true(chances: dict[float, float], low: float) -> None:
    """Summed over every sequence of seven values with its probability, in float64."""
    mean = sum(value * chance for value, chance in chances.items())
    expected = np.zeros(2)
    for values in itertools.product(chances, repeat=7):
        probability = math.prod(chances[value] for value in values)
        larger, smaller = log_capitals(values, mean, low, 0.05)
        expected += probability * np.exp([larger[-1, 0], smaller[-1, 0]])
    np.testing.assert_allclose(expected, [0.5, 0.5], rtol=1e-12)


@pytest.mark.parametrize(("accuracy", "shared"), [(0.5, 0.0), (0.5, 0.8), (0.05, 0.5)])
def test_equal_models_are_told_apart_no_more_often_than_alpha_under_continuous_looking(
    accuracy: float, shared: float
) -> None:
    rng = np.random.default_rng(1)
    runs = [paired(rng, 1000, accuracy, 0.0, shared) for _ in range(2000)]
    wrong = sum(decide(first, second).verdict != "open" for first, second in runs)
    # three standard deviations of the count above its expectation at α
    assert wrong <= 2000 * 0.05 + 3 * math.sqrt(2000 * 0.05 * 0.95)


def test_an_ordinary_test_is_wrong_far_more_often_when_it_is_looked_at_all_the_time() -> None:
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(200):
        first, second = paired(rng, 1000, 0.5, 0.0, 0.0)
        wrong += any(mcnemar(first[:n], second[:n]) < 0.05 for n in range(20, 1001, 20))
    assert wrong > 200 * 0.15


@pytest.mark.parametrize(("lead", "most"), [(0.05, 1500), (0.1, 400), (0.2, 150)])
def test_a_lead_is_found_and_never_for_the_other_side(lead: float, most: int) -> None:
    rng = np.random.default_rng(2)
    found = [decide(*paired(rng, 5000, 0.4, lead, 0.8)) for _ in range(50)]
    assert {decision.verdict for decision in found} == {"first leads"}
    assert np.mean([decision.images for decision in found]) < most


def test_models_within_the_margin_are_called_equal_and_others_are_not() -> None:
    rng = np.random.default_rng(3)
    alike = [decide(*paired(rng, 4000, 0.4, 0.0, 0.9), margin=0.05).verdict for _ in range(50)]
    assert alike.count("equal") >= 47
    apart = [decide(*paired(rng, 4000, 0.4, 0.06, 0.9), margin=0.05).verdict for _ in range(50)]
    assert apart.count("equal") <= 2


def test_without_a_margin_nothing_is_called_equal() -> None:
    same = np.ones(3000, dtype=bool)
    assert decide(same, same).verdict == "open"
    assert decide(same, same, margin=0.02).verdict == "equal"


@pytest.mark.parametrize("accuracy", [0.03, 0.5, 1.0])
def test_an_interval_covers_the_accuracy_at_every_time(accuracy: float) -> None:
    rng, missed = np.random.default_rng(4), 0
    for _ in range(60):
        right = rng.random(300) < accuracy
        # means that were refuted stay refuted, so the last interval tells whether any before it missed
        found = interval(right)
        missed += not found.low <= accuracy <= found.high
    assert missed <= 60 * 0.05 + 3 * math.sqrt(60 * 0.05 * 0.95)


def test_an_interval_shrinks_and_knows_nothing_before_the_first_image() -> None:
    right = np.random.default_rng(5).random(2000) < 0.3
    widths = [found.high - found.low for found in (interval(right[:n]) for n in (0, 50, 500, 2000))]
    assert widths[0] == 1.0 and widths == sorted(widths, reverse=True) and widths[-1] < 0.12
