"""One run of a minimum-norm attack is a whole security curve, worked out here image by image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmark.attacks import parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import WorstCase, stages
from benchmark.findings.layout import Layout
from benchmark.findings.radii import radii, radius_curves, radius_table, survivors, without_curve
from benchmark.findings.results import Results
from benchmark.findings.statistics import accuracy_interval
from benchmark.harness.tiers import Tier
from benchmark.reports.figures.radius_curves import radius_figures
from benchmark.reports.tables.notes import notes_of

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]
COUNT = 50


def _task(text: str, tier: Tier = "strict") -> WhiteBox:
    return WhiteBox(parse_attack(text), tier)


def _found(norm: str, scale: float = 1.0, failed: int = 5, wrong: int = 10) -> dict[str, Any]:
    """Images 0 … wrong−1 are wrong without an attack, the last ``failed`` survive, the others fall at 0.01 · number."""
    number = np.arange(COUNT)
    right = number >= wrong
    correct = number >= COUNT - failed
    return {
        "clean_prediction": np.where(right, 3, 4),
        "label": np.full(COUNT, 3),
        "adversarial_prediction": np.where(correct, 3, 4),
        "correct": correct,
        "attacked": right,
        norm: np.where(right & ~correct, scale * 0.01 * number, 0.5 * correct),
    }


def test_a_wrong_image_has_radius_0_and_one_that_the_attack_failed_on_survives_every_radius(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    results = make_results([(make_cell(_task("fmn(norm=l2)")), _found("l2"))])
    (records,) = results.records.values()
    found = radii(records, "l2")
    assert found.tolist() == [0.0] * 10 + [0.01 * n for n in range(10, 45)] + [np.inf] * 5
    assert [survivors(found, radius) for radius in (0, 0.1, 0.205, 99)] == [40, 39, 29, 5]


def test_the_table_has_the_share_of_images_beyond_each_radius_with_its_interval(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    results = make_results(
        [(make_cell(_task("fmn(norm=l2)"), name), _found("l2", scale)) for name, scale in (("a", 1), ("b", 2))]
    )
    table = radius_table(radius_curves(results))
    assert set(table["norm"]) == {"l2"} and set(table["failed"]) == {5}
    for _, row in table.iterrows():
        scale = {"a": 1, "b": 2}[row["defense"]]
        beyond = sum(scale * 0.01 * n > row["radius"] for n in range(10, 45)) + 5
        low, high = accuracy_interval(beyond, COUNT)
        assert (row["survivors"], row["accuracy"]) == (beyond, 100 * beyond / COUNT)
        assert (row["ci_low"], row["ci_high"]) == pytest.approx((100 * low, 100 * high), abs=1e-3)
    both = table.groupby("defense")["radius"]
    assert both.get_group("a").tolist() == both.get_group("b").tolist(), "the same radii for every defense"
    assert table["radius"].min() == 0 and table["radius"].max() == pytest.approx(0.88)


def test_of_several_settings_the_smallest_perturbation_counts_and_only_those_that_every_defense_has(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    finished = [
        (make_cell(_task("cw(c=0.1)"), "a"), _found("l2", 2, failed=20)),
        (make_cell(_task("cw(c=1)"), "a"), _found("l2", 3, failed=5)),
        (make_cell(_task("cw(c=10)"), "a"), _found("l2", 0.1, failed=0)),
        (make_cell(_task("cw(c=0.1)"), "b"), _found("l2", 2, failed=20)),
        (make_cell(_task("cw(c=1)"), "b"), _found("l2", 3, failed=5)),
    ]
    (curve,) = radius_curves(make_results(finished))
    assert curve.settings == ("c=0.1", "c=1")
    for found in curve.found.values():
        wanted = [0.0] * 10 + [0.02 * n for n in range(10, 30)] + [0.03 * n for n in range(30, 45)] + [np.inf] * 5
        assert found.tolist() == pytest.approx(wanted)


def test_norms_attacks_and_datasets_are_never_one_curve(make_cell: MakeCell, make_results: MakeResults) -> None:
    tasks = {"fmn(norm=l2)": "l2", "fmn(norm=l1)": "l1", "ddn": "l2", "ead(c=1)": "l1", "fmn(norm=l0)": "l0"}
    results = make_results([(make_cell(_task(text)), _found(norm)) for text, norm in tasks.items()])
    curves = radius_curves(results)
    assert [(curve.attack, curve.norm) for curve in curves] == [
        ("fmn", "l2"), ("fmn", "l1"), ("ddn", "l2"), ("ead", "l1"), ("fmn", "l0"),
    ]  # fmt: skip
    assert len({figure.name for figure in radius_figures(curves)}) == len(tasks)


def test_minimum_norm_classes_of_libraries_have_curves_where_their_norm_is_known(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    known = {
        "foolbox:L2FMNAttack(steps=50)": "l2",
        "art:DeepFool": "l2",
        "torchattacks:DeepFool(bound=none)": "l2",
        "foolbox:HopSkipJumpAttack(constraint=linf)": "linf",
        "foolbox:InversionAttack(distance=l1)": "l1",
    }
    others = ["foolbox:DatasetAttack", "foolbox:DDNAttack(bound=l2:0.5)", "torchattacks:GN(bound=none)"]
    finished = [(make_cell(_task(text)), _found(norm)) for text, norm in known.items()]
    results = make_results([*finished, *((make_cell(_task(text)), _found("l2")) for text in others)])
    curves = radius_curves(results)
    assert [(curve.library.split()[0], curve.attack, curve.norm) for curve in curves] == [
        ("foolbox", "L2FMNAttack", "l2"),
        ("art", "DeepFool", "l2"),
        ("torchattacks", "DeepFool", "l2"),
        ("foolbox", "HopSkipJumpAttack", "linf"),
        ("foolbox", "InversionAttack", "l1"),
    ]
    assert len({figure.name for figure in radius_figures(curves)}) == len(known)
    assert without_curve(results) == ["foolbox:DatasetAttack"]
    assert sum("foolbox:DatasetAttack" in note for note in notes_of(Layout(results)) if "curve" in note) == 1


def test_both_tiers_are_one_curve_and_targeted_attacks_are_none(make_cell: MakeCell, make_results: MakeResults) -> None:
    finished = [(make_cell(_task("ddn", tier)), _found("l2")) for tier in ("paper", "strict")]
    finished += [
        (make_cell(_task("ddn(targeted=true)")), _found("l2")),
        (make_cell(_task("pgd(eps=0.1)")), _found("l2")),
    ]
    (curve,) = radius_curves(make_results(finished))
    (found,) = curve.found.values()
    assert len(found) == COUNT


def test_beside_the_curve_stand_the_attacks_within_a_bound_of_its_norm(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    bound = Bound("l2", 0.2)
    worst = WorstCase(bound, "full", stages("full", bound, 2, 10))
    right = {"correct": np.arange(COUNT) < 20}
    finished = [
        (make_cell(_task("fmn(norm=l2)")), _found("l2")),
        (make_cell(_task("pgd(eps=0.2,norm=l2)")), {"correct": np.arange(COUNT) < 30}),
        (make_cell(worst), {**right, "stages": [[]] * COUNT}),
        (make_cell(_task("pgd(eps=0.2)")), {"correct": np.arange(COUNT) < 1}),
        (make_cell(_task("pgd(eps=0.2,norm=l2,targeted=true)")), {"correct": np.arange(COUNT) < 2}),
        (make_cell(_task("pgd(eps=0.2,norm=l2)", "paper")), {"correct": np.arange(COUNT) < 3}),
    ]
    (curve,) = radius_curves(make_results(finished))
    assert curve.points[["radius", "accuracy"]].to_numpy().tolist() == [[0.2, 40.0]]
    assert curve.points["attack"].tolist() == [worst.attack_title]
    (figure,) = radius_figures([curve])
    assert figure.name.startswith("curve") and "every radius" in figure.words
    assert len(figure.data) == len(radius_table([curve])) + 1
