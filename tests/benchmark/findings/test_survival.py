"""Images that every attack of one bound leaves right: of one norm and radius, on the same images, tier by tier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmark.attacks import NamedAttack, parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import Stage, WorstCase, stages
from benchmark.findings.layout import Layout
from benchmark.findings.results import Results
from benchmark.findings.survival import Survival, by_norm, lowest, of_one_norm, survival
from benchmark.harness.tiers import Tier

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]


def _task(text: str, tier: Tier = "strict") -> WhiteBox:
    return WhiteBox(parse_attack(text), tier)


def _right(right: int, shift: int = 0) -> dict[str, Any]:
    """So many of 50 images stay right, beginning with image ``shift``."""
    return {"correct": np.isin(np.arange(50), np.arange(right) + shift)}


def _strict(results: Results) -> Survival:
    found = survival(Layout(results), "digits", "strict")
    assert found is not None
    return found


def test_an_image_survives_where_every_attack_of_the_bound_leaves_it_right(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    fgsm, pgd = (make_cell(_task(f"{name}(eps=0.1)")) for name in ("fgsm", "pgd"))
    found = _strict(make_results([(fgsm, _right(20)), (pgd, _right(30, shift=15))]))
    assert found.right["ours"].tolist() == [15 <= image < 20 for image in range(50)]
    assert (found.bound, found.attacks, found.images) == (Bound("linf", 0.1), ["fgsm", "pgd"], 50)
    assert found.percent("ours") == 10 and found.interval("ours") == pytest.approx((3.3275, 21.8135), abs=1e-4)


def test_the_bound_is_the_one_that_most_attacks_share(make_cell: MakeCell, make_results: MakeResults) -> None:
    specs = {"pgd(eps=0.2)": 5, "pgd(eps=0.1)": 30, "fgsm(eps=0.1)": 20}
    found = _strict(make_results([(make_cell(_task(text)), _right(count)) for text, count in specs.items()]))
    assert found.bound == Bound("linf", 0.1) and found.percent("ours") == 40


def test_an_l2_attack_is_not_among_the_linf_attacks_of_its_radius(
    make_cell: MakeCell, make_results: MakeResults, l2_attack: Callable[..., NamedAttack]
) -> None:
    linf = [(make_cell(_task(f"{name}(eps=0.5)")), _right(count)) for name, count in (("fgsm", 20), ("pgd", 15))]
    other = (make_cell(WhiteBox(l2_attack(0.5), "strict")), _right(2))
    found = _strict(make_results([other, *linf]))
    assert (found.bound, found.attacks, found.percent("ours")) == (Bound("linf", 0.5), ["fgsm", "pgd"], 30)
    more = [(make_cell(WhiteBox(l2_attack(0.5, name=name), "strict")), _right(10)) for name in ("rounder", "roundest")]
    found = _strict(make_results([*linf, other, *more]))
    assert (found.bound, found.attacks) == (Bound("l2", 0.5), ["round", "rounder", "roundest"])
    assert found.percent("ours") == 4 and found.bound.symbol == "L2"


def test_a_worst_case_in_l2_is_not_one_in_linf(
    make_cell: MakeCell, make_results: MakeResults, l2_attack: Callable[..., NamedAttack]
) -> None:
    linf = make_cell(WorstCase(Bound("linf", 0.5), "full", stages("full", Bound("linf", 0.5), 2, 10)))
    l2 = make_cell(WorstCase(Bound("l2", 0.5), "full", (Stage(l2_attack(0.5)),)))
    found = survival(Layout(make_results([(linf, _right(30)), (l2, _right(10))])), "digits", "strong")
    assert found is not None and found.suite
    assert (found.bound, found.percent("ours")) == (Bound("linf", 0.5), 60)


def test_tiers_paper_and_strict_are_over_the_attacks_that_both_have(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    cells = {_task("pgd(eps=0.1)", "paper"): 40, _task("pgd(eps=0.1)"): 30, _task("mim(eps=0.1)"): 5}
    layout = Layout(make_results([(make_cell(task), _right(count)) for task, count in cells.items()]))
    found = [survival(layout, "digits", tier) for tier in ("paper", "strict")]
    assert [one and (one.attacks, one.percent("ours")) for one in found] == [(["pgd"], 80), (["pgd"], 60)]
    attacks = by_norm(layout, "digits", "strict")["linf"]
    assert lowest(layout, "digits", "strict", attacks) == {"ours": (10, ("mim", "eps=0.1"))}, "of all in that norm"


def test_what_tiers_share_is_looked_for_among_attacks_with_a_bound(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    cells = {_task("cw(c=1)", "paper"): 40, _task("cw(c=1)"): 40, _task("pgd(eps=0.1)"): 30}
    results = make_results([(make_cell(task), _right(count)) for task, count in cells.items()])
    assert _strict(results).percent("ours") == 60
    assert survival(Layout(results), "digits", "paper") is None


def test_the_lowest_accuracy_of_one_norm_leaves_other_norms_and_attacks_without_a_bound_out(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    specs = {
        "pgd(eps=0.1)": 30, "pgd(eps=0.2)": 20, "pgd(eps=0.5,norm=l2)": 10, "fmn(norm=linf)": 0, "cw(c=1)": 1,
    }  # fmt: skip
    layout = Layout(make_results([(make_cell(_task(text)), _right(count)) for text, count in specs.items()]))
    norm, attacks = of_one_norm(layout, "digits", "strict")
    assert (norm, attacks) == ("linf", [("pgd", "eps=0.1"), ("pgd", "eps=0.2")])
    assert lowest(layout, "digits", "strict", attacks) == {"ours": (40, ("pgd", "eps=0.2"))}
    norms = by_norm(layout, "digits", "strict")
    assert {norm: len(among) for norm, among in norms.items()} == {"linf": 2, "l2": 1, None: 2}


def test_the_norm_of_a_summary_is_that_of_the_bound_that_tiers_share(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    tasks = [_task("pgd(eps=0.1)", "paper"), _task("pgd(eps=0.1)")]
    tasks += [_task(f"pgd(eps={eps},norm=l2)") for eps in (0.5, 1, 2)]
    layout = Layout(make_results([(make_cell(task), _right(9)) for task in tasks]))
    assert of_one_norm(layout, "digits", "strict") == ("linf", [("pgd", "eps=0.1")])
    assert of_one_norm(layout, "digits", "strong") == (None, [])


def test_where_no_attack_has_a_bound_the_norm_is_the_one_that_most_of_them_minimise(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    specs = {"ead(c=1)": 1, "cw(c=1)": 8, "cw(c=2)": 5}
    layout = Layout(make_results([(make_cell(_task(text)), _right(count)) for text, count in specs.items()]))
    norm, attacks = of_one_norm(layout, "digits", "strict")
    assert norm == "l2" and lowest(layout, "digits", "strict", attacks) == {"ours": (10, ("cw", "c=2"))}


# --- who leads ---


@pytest.fixture
def two(make_cell: MakeCell, make_results: MakeResults) -> Callable[..., Results]:
    """Two defenses under PGD, by how many of 50 images each keeps."""

    def make(one: int, other: int, **others: Any) -> Results:
        pgd = _task("pgd(eps=0.1)")
        return make_results([(make_cell(pgd, "one"), _right(one)), (make_cell(pgd, "other", **others), _right(other))])

    return make


def test_a_lead_must_be_significant(two: Callable[..., Results]) -> None:
    assert not _strict(two(24, 20)).leads("one"), "4 images against 0: p = 0.125"
    assert _strict(two(40, 20)).leads("one") and not _strict(two(40, 20)).leads("other")


def test_nobody_leads_over_a_number_that_was_not_measured_alike(two: Callable[..., Results]) -> None:
    found = _strict(two(40, 5, batch_size=25))
    assert not found.alike and not found.leads("one")


def test_nobody_leads_beside_a_defense_that_is_not_finished(make_cell: MakeCell, two: Callable[..., Results]) -> None:
    results = two(40, 10)
    unfinished = replace(results, cells=(*results.cells, make_cell(_task("pgd(eps=0.1)"), "three")))
    found = _strict(unfinished)
    assert (found.lacking, set(found.right)) == (1, {"one", "other"}) and not found.leads("one")
    assert "three" not in lowest(Layout(unfinished), "digits", "strict", [("pgd", "eps=0.1")])


def test_seeds_share_images_so_each_must_show_the_lead_and_there_is_no_interval(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    def found(*right: tuple[int, int]) -> Survival:
        pgd = _task("pgd(eps=0.1)")
        cells = [
            (make_cell(pgd, name, seed=seed), _right(count))
            for seed, counts in enumerate(right)
            for name, count in zip(("one", "other"), counts, strict=True)
        ]
        return _strict(make_results(cells))

    both = found((40, 20), (40, 20))
    assert both.seeds == 2 and both.leads("one") and both.interval("one") is None
    assert not found((40, 20), (24, 20)).leads("one")
    assert found((40, 20), (30, 20)).percent("one") == 70
