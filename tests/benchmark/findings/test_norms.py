"""Bounds of two norms are never taken for one another, whatever their radius."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

from benchmark.attacks import NamedAttack
from benchmark.attacks.bounds import Bound
from benchmark.attacks.definitions import AutoAttack
from benchmark.evaluations.worst_case import Stage, WorstCase, stages
from benchmark.findings.layout import Layout
from benchmark.findings.strengths import curves
from benchmark.findings.suites import suite_table
from benchmark.findings.tier_gap import gap_table
from benchmark.reports.figures.gap import gap_figures
from defenses.errors import BadInput


def _right(right: int) -> dict[str, Any]:
    return {"correct": np.arange(50) < right, "stages": [[]] * 50}


def _linf(radius: float) -> WorstCase:
    return WorstCase(Bound("linf", radius), "full", stages("full", Bound("linf", radius), 2, 10))


def test_worst_cases_in_two_norms_are_not_one_curve(
    make_cell: Any, make_results: Any, l2_attack: Callable[..., NamedAttack]
) -> None:
    l2 = WorstCase(Bound("l2", 0.5), "full", (Stage(l2_attack(0.5)),))
    cells = [make_cell(task) for task in (_linf(0.1), _linf(0.2), l2)]
    assert list(curves(Layout(make_results([(cell, _right(20)) for cell in cells])))) == []


def test_worst_cases_in_two_norms_are_not_one_picture(
    make_cell: Any, make_results: Any, l2_attack: Callable[..., NamedAttack]
) -> None:
    l2 = WorstCase(Bound("l2", 0.5), "full", (Stage(l2_attack(0.5)),))
    results = make_results([(make_cell(_linf(0.5)), _right(40)), (make_cell(l2), _right(10))])
    assert len({figure.name for figure in gap_figures(gap_table(results))}) == 2


def test_the_tables_of_worst_cases_name_the_norm(
    make_cell: Any, make_results: Any, l2_attack: Callable[..., NamedAttack]
) -> None:
    l2 = WorstCase(Bound("l2", 0.5), "full", (Stage(l2_attack(0.5)),))
    results = make_results([(make_cell(_linf(0.5)), _right(40)), (make_cell(l2), _right(10))])
    assert gap_table(results)["norm"].tolist() == ["linf", "l2"]
    assert set(suite_table(results)["norm"]) == {"linf", "l2"}


def test_a_suite_has_attacks_within_its_bound_alone_and_a_norm_without_one_is_refused() -> None:
    for suite in ("full", "quick"):
        for bound in (Bound("linf", 0.5), Bound("l2", 2.5), Bound("l1", 12)):
            assert all(stage.named.bound == bound for stage in stages(suite, bound, 2, 10))
    with pytest.raises(BadInput, match="L0"):
        stages("full", Bound("l0", 5), 2, 10)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_a_suite_has_the_parts_of_reference_autoattack_in_its_norm(norm: Literal["l2", "l1"]) -> None:
    inside = {stage.named.attack for stage in stages("full", Bound(norm, 2.5), 2, 10)}
    assert set(AutoAttack(2.5, norm=norm).parts.values()) <= inside
