"""A curve has one attack at three strengths or more, alike in all else, and one over a radius begins without attack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmark.attacks import NamedAttack, parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import WorstCase, stages
from benchmark.findings.layout import Layout
from benchmark.findings.results import Results
from benchmark.findings.strengths import Curve, curves
from benchmark.harness.tiers import Tier

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]


def _task(text: str, tier: Tier = "strict") -> WhiteBox:
    return WhiteBox(parse_attack(text), tier)


def _right(right: int) -> dict[str, Any]:
    return {"correct": np.arange(50) < right}


@pytest.fixture
def found(make_cell: MakeCell, make_results: MakeResults) -> Callable[..., list[Curve]]:
    """The curves of tasks on one defense."""
    return lambda *tasks: list(curves(Layout(make_results([(make_cell(task), _right(20)) for task in tasks]))))


def test_a_curve_over_a_radius_begins_at_the_clean_accuracy(make_cell: MakeCell, make_results: MakeResults) -> None:
    right = {"good": (40, 10, 0), "odd": (40, 35, 30)}
    finished = [
        (make_cell(_task(f"pgd(eps={eps})"), name), _right(count))
        for name, counts in right.items()
        for eps, count in zip((0.1, 0.2, 0.3), counts, strict=True)
    ]
    (curve,) = curves(Layout(make_results(finished)))
    assert (curve.parameter, curve.bound and curve.bound.norm, curve.rest) == ("eps", "linf", "")
    assert curve.rows["accuracy"].tolist() == [80, 20, 0, 80, 70, 60, 100, 100], "at last without an attack"
    assert curve.rows["strength"].tolist() == [0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0, 0]
    assert (curve.rows["ci_low"].iloc[-1], curve.rows["ci_high"].iloc[-1]) == pytest.approx(
        (100 * 0.025 ** (1 / 50), 100), abs=1e-3
    )


def test_two_strengths_are_no_curve(found: Callable[..., list[Curve]]) -> None:
    assert found(_task("pgd(eps=0.1)"), _task("pgd(eps=0.2)")) == []


def test_a_constant_makes_a_curve_without_a_beginning(found: Callable[..., list[Curve]]) -> None:
    (curve,) = found(*(_task(f"cw(c={c})") for c in (0.1, 1, 10)))
    assert (curve.parameter, curve.bound) == ("c", None)
    assert curve.rows["strength"].tolist() == [0.1, 1, 10]


def test_tiers_libraries_and_other_settings_are_curves_of_their_own(found: Callable[..., list[Curve]]) -> None:
    radii = (0.1, 0.2, 0.3)
    kinds = ("pgd(eps={})", "pgd@art(eps={})", "pgd(eps={},steps=20)")
    tasks = [_task(kind.format(eps)) for kind in kinds for eps in radii]
    paper = [_task(f"pgd(eps={eps})", "paper") for eps in radii]
    assert [curve.rest for curve in found(*tasks, *paper)] == ["", "", "steps=20", ""]
    assert found(*(_task(f"pgd(eps={eps},steps={10 + number})") for number, eps in enumerate(radii))) == []


def test_a_step_that_grows_with_the_radius_is_one_setting(found: Callable[..., list[Curve]]) -> None:
    (curve,) = found(*(_task(f"pgd(eps={eps},step_size={eps / 4})") for eps in (0.1, 0.2, 0.4)))
    assert curve.rest == "step_size=0.25·eps"
    assert found(*(_task(f"pgd(eps={eps},step_size=0.01)") for eps in (0.1, 0.2, 0.4))) == []


def test_a_worst_case_has_a_curve_by_its_suite(found: Callable[..., list[Curve]]) -> None:
    bounds = [Bound("linf", eps) for eps in (0.1, 0.2, 0.3)]
    full, quick = found(
        *(WorstCase(bound, suite, stages(suite, bound, 2, 10)) for suite in ("full", "quick") for bound in bounds)
    )
    assert (full.rest, quick.rest) == ("", "suite=quick")
    assert full.bound == bounds[0]


def test_an_l2_attack_has_a_curve_of_its_own_norm(
    found: Callable[..., list[Curve]], l2_attack: Callable[..., NamedAttack]
) -> None:
    radii = (0.1, 0.2, 0.3)
    tasks = [WhiteBox(l2_attack(eps), "strict") for eps in radii]
    linf, l2 = found(*(_task(f"pgd(eps={eps})") for eps in radii), *tasks)
    assert [curve.bound and curve.bound.norm for curve in (linf, l2)] == ["linf", "l2"]
    assert set(l2.rows["attack"]) == {"round"}
