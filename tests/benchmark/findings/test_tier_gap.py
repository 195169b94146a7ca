"""The gap between tiers is measured on the same images, within one bound, over the attacks that tiers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmark.attacks import NamedAttack, parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import Stage, WorstCase, stages
from benchmark.findings.results import Results
from benchmark.findings.tier_gap import gap_table
from benchmark.harness.tiers import Tier

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]


def _task(text: str, tier: Tier = "strict") -> WhiteBox:
    return WhiteBox(parse_attack(text), tier)


def _worst(radius: float = 0.1) -> WorstCase:
    return WorstCase(Bound("linf", radius), "full", stages("full", Bound("linf", radius), 2, 10))


def _right(right: int, count: int = 50, shift: int = 0) -> dict[str, Any]:
    return {"correct": np.isin(np.arange(count), np.arange(right) + shift)}


def test_the_worst_case_of_each_tier_stands_beside_the_strong_one(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    finished = [
        (make_cell(_task("fgsm(eps=0.1)", "paper"), published=70.0), _right(40)),
        (make_cell(_task("pgd(eps=0.1)", "paper"), published=52.8), _right(35, shift=10)),
        (make_cell(_task("fgsm(eps=0.1)")), _right(30)),
        (make_cell(_task("pgd(eps=0.1)")), _right(25, shift=10)),
        (make_cell(_worst()), _right(10)),
    ]
    (row,) = gap_table(make_results(finished)).to_dict("records")
    assert (row["dataset"], row["defense"], row["eps"], row["seed"]) == ("digits", "ours", 0.1, 0)
    assert (row["paper"], row["strict"], row["strong"]) == (60, 40, 20), "images 10 to 39, 10 to 29, and 0 to 9"
    assert (row["paper_attacks"], row["strict_attacks"], row["images"]) == (2, 2, 50)
    assert (row["published"], row["suite"]) == (52.8, "full"), "the lowest published number"
    assert (row["strong_low"], row["strong_high"]) == pytest.approx((10.0302, 33.7183), abs=1e-3)


def test_the_gap_is_between_tiers_and_not_between_attacks(make_cell: MakeCell, make_results: MakeResults) -> None:
    finished = [
        (make_cell(_task("pgd(eps=0.1)", "paper")), _right(40)),
        (make_cell(_task("pgd(eps=0.1)")), _right(30)),
        (make_cell(_worst()), _right(10)),
    ]
    before = gap_table(make_results(finished))
    alone = (make_cell(_task("mim(eps=0.1)")), _right(5))
    pd.testing.assert_frame_equal(gap_table(make_results([*finished, alone])), before)
    (row,) = gap_table(make_results([alone, *finished[1:]])).to_dict("records")
    assert (row["strict"], row["strict_attacks"], row["paper_attacks"]) == (10, 2, 0), "where nothing is shared"


def test_only_attacks_on_the_same_images_of_the_same_weights_stand_beside_a_worst_case(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    pgd = _task("pgd(eps=0.1)")
    finished = [
        (make_cell(pgd, weights="others"), _right(1)),
        (make_cell(pgd, seed=1), _right(2)),
        (make_cell(pgd, "theirs"), _right(3)),
        (make_cell(pgd, samples=20), _right(4, 20)),
        (make_cell(_task("pgd(eps=0.2)")), _right(5)),
        (make_cell(_task("pgd(eps=0.05)")), _right(6)),
        (make_cell(_task("pgd(eps=0.1,targeted=true)")), _right(7)),
        (make_cell(_task("cw(c=1)")), _right(8)),
        (make_cell(pgd, samples=100), _right(60, 100)),
        (make_cell(_worst()), _right(10)),
    ]
    (row,) = gap_table(make_results(finished)).to_dict("records")
    assert (row["strict"], row["strict_attacks"]) == (100, 1), "the first 50 of 100 images, and nothing else"


def test_an_l2_attack_is_not_beside_an_linf_worst_case_of_its_radius(
    make_cell: MakeCell, make_results: MakeResults, l2_attack: Callable[..., NamedAttack]
) -> None:
    finished = [
        (make_cell(WhiteBox(l2_attack(0.5), "strict")), _right(15)),
        (make_cell(_task("pgd(eps=0.5)")), _right(30)),
        (make_cell(_worst(0.5)), _right(25)),
        (make_cell(WorstCase(Bound("l2", 0.5), "full", (Stage(l2_attack(0.5)),))), _right(5)),
    ]
    linf, l2 = gap_table(make_results(finished)).to_dict("records")
    assert (linf["strong"], linf["strict"], linf["strict_attacks"]) == (50, 60, 1)
    assert (l2["strong"], l2["strict"], l2["strict_attacks"]) == (10, 30, 1)


def test_a_run_without_a_worst_case_has_no_gap(make_cell: MakeCell, make_results: MakeResults) -> None:
    assert gap_table(make_results([(make_cell(_task("pgd(eps=0.1)")), _right(10))])).empty
