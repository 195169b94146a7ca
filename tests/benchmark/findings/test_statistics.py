"""Intervals and tests equal their textbook definitions."""

from __future__ import annotations

from math import atan, comb, isnan, pi, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmark.findings.statistics import (
    SIGNIFICANT,
    accuracy_interval,
    holm,
    least_significant,
    mcnemar,
    paired_difference,
    paired_t,
    spread,
)

COUNTS = st.integers(1, 400).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count)))
PAIRS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(COUNTS, st.sampled_from([0.9, 0.95, 0.99]))
def test_the_interval_is_clopper_and_pearsons(pair: tuple[int, int], confidence: float) -> None:
    correct, count = pair
    expected = stats.binomtest(correct, count).proportion_ci(confidence, method="exact")
    assert accuracy_interval(correct, count, confidence) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(COUNTS)
def test_the_interval_holds_the_proportion_and_mirrors(pair: tuple[int, int]) -> None:
    correct, count = pair
    low, high = accuracy_interval(correct, count)
    assert 0 <= low <= correct / count <= high <= 1
    assert accuracy_interval(count - correct, count) == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_no_image_says_nothing() -> None:
    assert accuracy_interval(0, 0) == (0.0, 1.0)


def _pairs(only_first: int, only_second: int, both: int = 5) -> tuple[list[bool], list[bool]]:
    first = [True] * only_first + [False] * only_second + [True] * both
    second = [False] * only_first + [True] * only_second + [True] * both
    return first, second


@pytest.mark.parametrize(("b", "c"), [(0, 5), (5, 0), (1, 9), (9, 3), (4, 4), (12, 2), (0, 6)])
def test_mcnemar_is_the_exact_binomial_test_on_the_images_that_differ(b: int, c: int) -> None:
    tail = sum(comb(b + c, k) for k in range(min(b, c) + 1)) / 2 ** (b + c)
    assert mcnemar(*_pairs(b, c)) == pytest.approx(min(1.0, 2 * tail))


def test_mcnemar_known_values() -> None:
    assert mcnemar(*_pairs(0, 6)) == pytest.approx(0.03125)
    assert mcnemar(*_pairs(0, 5)) == pytest.approx(0.0625)
    assert mcnemar([True, False], [True, False]) == 1.0


@given(PAIRS)
def test_mcnemar_is_symmetric_a_probability_and_blind_to_agreement(pairs: list[tuple[bool, bool]]) -> None:
    first, second = (np.array(values) for values in zip(*pairs, strict=True))
    p = mcnemar(first, second)
    assert 0 < p <= 1 and p == pytest.approx(mcnemar(second, first))
    agreed = np.array([True, False, True])
    assert mcnemar(np.append(first, agreed), np.append(second, agreed)) == pytest.approx(p)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@given(P_VALUES)
def test_holm_never_lowers_keeps_the_order_and_is_at_most_bonferroni(values: list[float]) -> None:
    adjusted = holm(values)
    assert all(
        before <= after <= min(1.0, len(values) * before) + 1e-12
        for before, after in zip(values, adjusted, strict=True)
    )
    order = np.argsort(values, kind="stable")
    assert all(np.diff(np.array(adjusted)[order]) >= -1e-12)


# --- the paired interval ---


@given(PAIRS)
def test_the_paired_interval_is_agresti_and_mins(pairs: list[tuple[bool, bool]]) -> None:
    first, second = (np.array(values) for values in zip(*pairs, strict=True))
    difference, low, high = paired_difference(first, second)
    assert difference == pytest.approx(first.mean() - second.mean())
    n = len(pairs) + 2
    p12, p21 = (((first & ~second).sum() + 0.5) / n, ((~first & second).sum() + 0.5) / n)
    half = 1.959964 * np.sqrt((p12 + p21 - (p12 - p21) ** 2) / n)
    assert (low, high) == pytest.approx((max(p12 - p21 - half, -1), min(p12 - p21 + half, 1)), abs=1e-6)
    assert -1 <= low < high <= 1
    other = paired_difference(second, first)
    assert other == pytest.approx((-difference, -high, -low))


@pytest.mark.parametrize(("both", "only_first", "only_second"), [(0.6, 0.1, 0.1), (0.2, 0.3, 0.05), (0.9, 0.03, 0.01)])
def test_the_paired_interval_covers_the_truth(both: float, only_first: float, only_second: float) -> None:
    draws = np.random.default_rng(0)
    shares = [both, only_first, only_second, 1 - both - only_first - only_second]
    truth, hits = only_first - only_second, 0
    for counts in draws.multinomial(100, shares, size=800):
        outcomes = np.repeat([[True, True], [True, False], [False, True], [False, False]], counts, axis=0)
        _, low, high = paired_difference(outcomes[:, 0], outcomes[:, 1])
        hits += low <= truth <= high
    assert hits / 800 >= 0.935


def test_no_pair_says_nothing() -> None:
    assert paired_difference([], []) == (0.0, -1.0, 1.0)


# --- defaults, and what comes in and goes out ---


@pytest.mark.parametrize(
    ("correct", "count", "low", "high"),
    [(5, 10, 0.1871, 0.8129), (8, 10, 0.4439, 0.9748), (0, 10, 0.0, 0.3085), (10, 10, 0.6915, 1.0)],
)
def test_intervals_are_at_95_percent_unless_told_as_printed_tables_are(
    correct: int, count: int, low: float, high: float
) -> None:
    assert accuracy_interval(correct, count) == pytest.approx((low, high), abs=5e-5)


def test_six_images_against_none_are_significant_and_five_are_not() -> None:
    """2 · 2⁻⁶ = 0.031 and 2 · 2⁻⁵ = 0.0625: the usual level of 5 % lies between."""
    assert mcnemar(*_pairs(6, 0)) < SIGNIFICANT < mcnemar(*_pairs(5, 0))


def test_outcomes_may_be_numbers_or_nothing_at_all() -> None:
    """A column of 0.0 and 1.0 is one of booleans; an empty list, which numpy takes for floats, holds no pair."""
    first, second = _pairs(9, 3)
    numbers = [float(value) for value in first], [float(value) for value in second]
    assert mcnemar(*numbers) == mcnemar(first, second)
    assert paired_difference(*numbers) == paired_difference(first, second)
    assert mcnemar([], []) == 1.0


def test_results_are_plain_numbers_for_words_and_files() -> None:
    first, second = _pairs(9, 3)
    found = [*accuracy_interval(3, 7), mcnemar(first, second), *paired_difference(first, second), *holm([0.01, 0.4])]
    assert {type(value) for value in found} == {float}


def test_the_test_over_seeds_is_as_by_hand() -> None:
    """Student's distribution has closed forms with one and two degrees of freedom."""
    statistic = 5 / (sqrt((9 + 1 + 16) / 2) / sqrt(3))  # of 2, 4 and 9: mean 5, squares of 3, 1 and 4
    assert paired_t([2, 4, 9]) == pytest.approx(1 - statistic / sqrt(statistic**2 + 2))
    assert paired_t([-2, -4, -9]) == paired_t([2, 4, 9])
    statistic = 3 / (sqrt(2) / sqrt(2))  # of 2 and 4: mean 3, variance 2
    assert paired_t([2, 4]) == pytest.approx(1 - 2 / pi * atan(statistic))
    found = spread([2, 4, 9])
    half = 4.302652729749464 * sqrt(13) / sqrt(3)  # the 97.5 % point of two degrees of freedom
    assert found == pytest.approx((5, sqrt(13), 5 - half, 5 + half))


@given(st.lists(st.integers(-100, 100), min_size=2, max_size=10).filter(lambda values: len(set(values)) > 1))
def test_the_test_over_seeds_is_students(values: list[int]) -> None:
    expected = stats.ttest_1samp(values, 0)
    assert paired_t(values) == pytest.approx(expected.pvalue, abs=1e-12)
    low, high = expected.confidence_interval(0.95)
    assert spread(values) == pytest.approx((np.mean(values), np.std(values, ddof=1), low, high))


def test_values_that_do_not_vary_prove_nothing() -> None:
    assert paired_t([5, 5, 5]) == paired_t([5]) == 1.0
    assert spread([5, 5])[:2] == (5, 0) and isnan(spread([5, 5]).low)
    assert spread([5]).mean == 5 and isnan(spread([5]).deviation)


@pytest.mark.parametrize(("seeds", "least"), [(2, 8.985), (3, 2.484), (5, 1.242)])
def test_few_seeds_show_only_large_differences(seeds: int, least: float) -> None:
    assert least_significant(seeds) == pytest.approx(least, abs=1e-3)
    shape = stats.zscore(np.arange(seeds), ddof=1)  # mean 0, standard deviation 1
    for factor in (0.99, 1.01):
        assert (paired_t(shape + factor * least_significant(seeds)) < SIGNIFICANT) == (factor > 1)
