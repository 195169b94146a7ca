"""The numbers of a table: who leads is told only where it is earned, and tiers are subtracted on the same images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings.layout import Layout
from benchmark.findings.results import Results
from benchmark.harness.tiers import Tier

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]

ATTACK = ("pgd", "eps=0.1")


def _pgd(tier: Tier = "strict", eps: float = 0.1) -> WhiteBox:
    return WhiteBox(parse_attack(f"pgd(eps={eps})"), tier)


def _right(right: int, count: int = 100, shift: int = 0) -> dict[str, Any]:
    """So many right answers, beginning with image ``shift``."""
    return {"correct": np.isin(np.arange(count), (np.arange(right) + shift) % count)}


@pytest.fixture
def pgd(make_cell: MakeCell) -> Callable[..., Cell]:
    """PGD in tier strict on 100 images, by the defense."""
    return lambda defense, **others: make_cell(_pgd(), defense, **{"samples": 100, "batch_size": 50, **others})


def _best(results: Results) -> str | None:
    return Layout(results).best("digits", ATTACK, "strict")


# --- who leads ---


def test_the_best_leads_where_the_paired_difference_is_significant(
    pgd: Callable[..., Cell], make_results: MakeResults
) -> None:
    results = make_results([(pgd("one"), _right(50)), (pgd("two"), _right(60))])
    assert _best(results) == "two", "10 images against 0: p = 0.002"
    assert Layout(results).table["accuracy"].tolist() == [50, 60]


def test_a_lead_of_five_images_is_none(pgd: Callable[..., Cell], make_results: MakeResults) -> None:
    results = make_results([(pgd("one"), _right(50)), (pgd("two"), _right(55))])
    assert _best(results) is None, "5 images against 0: p = 0.06"


def test_the_same_lead_on_other_images_is_none(pgd: Callable[..., Cell], make_results: MakeResults) -> None:
    results = make_results([(pgd("one"), _right(50)), (pgd("two"), _right(60, shift=45))])
    assert _best(results) is None, "the pairs decide: 55 images against 45"


def test_the_best_must_lead_every_other_significantly(pgd: Callable[..., Cell], make_results: MakeResults) -> None:
    right = {"one": 20, "two": 58, "three": 60}
    assert _best(make_results([(pgd(name), _right(count)) for name, count in right.items()])) is None


def test_nobody_leads_without_a_rival_or_on_different_images(
    pgd: Callable[..., Cell], make_results: MakeResults
) -> None:
    assert _best(make_results([(pgd("one"), _right(90))])) is None
    results = make_results([(pgd("one"), _right(90)), (pgd("two", samples=50), _right(5, 50))])
    assert _best(results) is None
    assert Layout(results).table["accuracy"].tolist() == [90, 10]


def test_seeds_are_paired_with_their_own(pgd: Callable[..., Cell], make_results: MakeResults) -> None:
    """Each defense lacks another seed: as many images, but no pairs."""
    cells = [pgd(name, seed=seed) for name in ("one", "two") for seed in (0, 1)]
    results = make_results([(cells[0], _right(10)), (cells[3], _right(90))])
    assert _best(replace(results, cells=tuple(cells))) is None
    assert _best(results) is None, "not even where nobody asked for the others"


def test_nobody_leads_beside_a_defense_without_a_number(pgd: Callable[..., Cell], make_results: MakeResults) -> None:
    results = make_results([(pgd("one"), _right(20)), (pgd("two"), _right(60))])
    assert _best(results) == "two"
    unknown = replace(results, cells=(*results.cells, pgd("three")))
    assert _best(unknown) is None, "nobody knows how the third would do"


def test_a_lead_over_a_number_that_was_not_measured_alike_is_none_and_flagged(
    pgd: Callable[..., Cell], make_results: MakeResults
) -> None:
    results = make_results([(pgd("one"), _right(20)), (pgd("two", batch_size=25), _right(60))])
    assert _best(results) is None
    layout = Layout(results)
    assert [layout.flagged(layout.of("digits", ATTACK, "strict", name)) for name in ("one", "two")] == [False, True]


def test_seeds_are_not_more_images(pgd: Callable[..., Cell], make_results: MakeResults) -> None:
    """Five images against none, five times over: the same images, so no more evidence than once."""
    cells = [(pgd(n, seed=s), _right(right)) for s in range(5) for n, right in (("one", 50), ("two", 55))]
    assert _best(make_results(cells)) is None
    cells = [(pgd(n, seed=s), _right(right)) for s in range(2) for n, right in (("one", 50), ("two", 60))]
    assert _best(make_results(cells)) == "two", "ten images, for each seed"


def test_seeds_may_differ_in_batch_size_where_rivals_do_not(
    pgd: Callable[..., Cell], make_results: MakeResults
) -> None:
    cells = [
        (pgd(name, seed=seed, batch_size=size), _right(right))
        for seed, size in ((0, 50), (1, 25))
        for name, right in (("one", 20), ("two", 90))
    ]
    assert _best(make_results(cells)) == "two"


# --- tiers side by side ---


def test_tiers_are_subtracted_where_they_have_the_same_images(make_cell: MakeCell, make_results: MakeResults) -> None:
    pairs = [
        (make_cell(_pgd("paper"), samples=100), _right(50)),
        (make_cell(_pgd("strict")), _right(20, 50)),
        (make_cell(_pgd("paper", 0.2), samples=100), _right(30)),
        (make_cell(_pgd("strict", 0.2), samples=100), _right(20)),
    ]
    layout = Layout(make_results(pairs))
    assert layout.quirk("digits", ("pgd", "eps=0.2"), "ours") == pytest.approx(10)
    assert layout.quirk("digits", ATTACK, "ours") is None, "100 images against 50"


def test_tiers_of_different_seeds_are_not_subtracted(make_cell: MakeCell, make_results: MakeResults) -> None:
    pairs = [(make_cell(_pgd("paper")), _right(25, 50)), (make_cell(_pgd(), seed=1, weights="w"), _right(20, 50))]
    assert Layout(make_results(pairs)).quirk("digits", ATTACK, "ours") is None


# --- how it is arranged ---


def test_parts_attacks_and_defenses_keep_their_order(make_cell: MakeCell, make_results: MakeResults) -> None:
    fgsm = WhiteBox(parse_attack("fgsm(eps=0.3)"), "paper")
    cells = [make_cell(task, name) for name in ("b", "a") for task in (Clean(), _pgd("paper"), fgsm, _pgd())]
    layout = Layout(make_results([(cell, {}) for cell in cells]))
    assert layout.defenses("digits") == ["b", "a"]
    assert layout.groups("digits") == ["clean", "paper", "strict"]
    assert layout.attacks("digits", "paper") == [ATTACK, ("fgsm", "eps=0.3")]
    assert [layout.cells[p] for p in layout.of("digits", ATTACK, "strict", "a")] == [cells[-1]]


def test_the_library_is_named_where_an_attack_has_several(make_cell: MakeCell, make_results: MakeResults) -> None:
    specs = ("pgd(eps=0.1)", "pgd@art(eps=0.2)", "fgsm(eps=0.1)")
    cells = [make_cell(WhiteBox(parse_attack(text), "strict")) for text in specs]
    layout = Layout(make_results([(cell, {}) for cell in cells]))
    expected = [("pgd@torchattacks", "eps=0.1"), ("pgd@art", "eps=0.2"), ("fgsm", "eps=0.1")]
    assert layout.attacks("digits", "strict") == expected


def test_clean_accuracy_is_the_ensemble_s_on_the_most_images(make_cell: MakeCell, make_results: MakeResults) -> None:
    def before(right: int, count: int) -> dict[str, Any]:
        return {"clean_prediction": np.where(np.arange(count) < right, 3, 5)}

    cells = [
        (make_cell(_pgd(), samples=50), before(40, 50)),
        (make_cell(Clean(), samples=100), before(70, 100)),
        (make_cell(Clean(0), samples=200), before(10, 200)),
    ]
    (row,) = Layout(make_results(cells)).unattacked("digits", "ours").to_dict("records")
    assert (row["clean_accuracy"], row["samples"]) == (70, 100), "a member by itself is not the ensemble"
