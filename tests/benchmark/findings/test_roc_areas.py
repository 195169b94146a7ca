"""AUC is what scikit-learn says, its interval covers, and a threshold never sees what it is judged on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell
from benchmark.evaluations.detection import SCORES, Detection
from benchmark.findings.results import Results
from benchmark.findings.roc_areas import auc_interval, detection_table, roc, trials

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]
Values = NDArray[np.float64]
Finished = list[tuple[Cell, dict[str, Any]]]
TIED = st.lists(st.integers(0, 8), min_size=2, max_size=40).map(lambda values: np.array(values, dtype=float))


# --- the area ---


@given(TIED, TIED)
def test_the_area_is_scikit_learns_ties_included(clean: Values, adversarial: Values) -> None:
    labels = np.repeat([1, 0], [len(clean), len(adversarial)])
    area, low, high = auc_interval(clean, adversarial)
    assert area == pytest.approx(roc_auc_score(labels, np.concatenate([clean, adversarial])))
    assert 0 <= low <= area + 1e-12 and area - 1e-12 <= high <= 1


@given(TIED, TIED)
def test_the_interval_mirrors_when_the_sides_change_places(clean: Values, adversarial: Values) -> None:
    area, low, high = auc_interval(clean, adversarial)
    assert auc_interval(adversarial, clean) == pytest.approx((1 - area, 1 - high, 1 - low))


def test_the_interval_is_delongs() -> None:
    clean, adversarial = np.array([0.9, 0.8, 0.4, 0.7]), np.array([0.1, 0.8, 0.3])
    wins = (clean[:, None] > adversarial) + 0.5 * (clean[:, None] == adversarial)
    variance = wins.mean(1).var(ddof=1) / 4 + wins.mean(0).var(ddof=1) / 3
    area, low, high = auc_interval(clean, adversarial)
    assert area == pytest.approx(wins.mean())
    assert low == pytest.approx(max(wins.mean() - 1.959964 * variance**0.5, 0), abs=1e-6)
    assert high == min(wins.mean() + 1.959964 * variance**0.5, 1)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0)
    truth = 0.7602499  # Φ(1 / √2): two normals one apart
    hits, widths = 0, []
    for _ in range(400):
        _, low, high = auc_interval(draws.normal(1, 1, 60), draws.normal(0, 1, 80))
        hits += low <= truth <= high
        widths.append(high - low)
    assert 0.91 <= hits / 400 <= 0.985
    _, low, high = auc_interval(draws.normal(1, 1, 6000), draws.normal(0, 1, 8000))
    assert high - low == pytest.approx(np.mean(widths) / 10, rel=0.15), "a hundred times the images, a tenth the width"


def test_nothing_to_compare_gives_no_area() -> None:
    assert np.isnan(auc_interval(np.array([1.0]), np.array([]))).all()


@given(TIED, TIED)
def test_the_curve_runs_from_corner_to_corner_around_its_area(clean: Values, adversarial: Values) -> None:
    false_alarms, caught = roc(clean, adversarial)
    assert (false_alarms[0], caught[0]) == (0, 0) and (false_alarms[-1], caught[-1]) == (1, 1)
    assert (np.diff(false_alarms) >= 0).all() and (np.diff(caught) >= 0).all()
    area = (np.diff(false_alarms) * (caught[1:] + caught[:-1]) / 2).sum()
    assert area == pytest.approx(auc_interval(clean, adversarial)[0])


# --- the table ---


def _scores(values: Values) -> dict[str, Any]:
    return dict.fromkeys(SCORES, values) | {"adversarial_prediction": 3}


def _attacked(values: Values, fooled: int) -> dict[str, Any]:
    predicted = np.where(np.arange(len(values)) < fooled, 7, 3)
    return _scores(values) | {"adversarial_prediction": predicted, "correct": predicted == 3}


def _run(
    make_cell: MakeCell, compared: Values, held_out: Values, adversarial: Values, fooled: int, **others: Any
) -> Finished:
    """Clean images, those that are compared first, and PGD on as many."""
    size = len(compared)
    clean = make_cell(Detection(None, size), samples=size + len(held_out), **{"batch_size": size, **others})
    pgd = Detection(parse_attack("pgd(eps=0.1)"))
    attacked = make_cell(pgd, samples=len(adversarial), **{"batch_size": size, **others})
    return [(clean, _scores(np.concatenate([compared, held_out]))), (attacked, _attacked(adversarial, fooled))]


def _one(results: Results) -> dict[str, Any]:
    table = detection_table(results)
    assert table["score"].tolist() == list(SCORES)
    return table.iloc[0].to_dict()


def test_misclassified_clean_images_are_negatives_only_of_the_first_area(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    draws = np.random.default_rng(2)
    compared, held_out, adversarial = draws.normal(1, 1, (3, 50)) - np.array([[0], [0], [1]])
    (clean, columns), attacked = _run(make_cell, compared, held_out, adversarial, fooled=40)
    wrong = np.arange(100) < 20  # misclassified without an attack, as uncertain images are: low scores
    scores = dict.fromkeys(SCORES, np.where(wrong, columns["diversity"] - 3, columns["diversity"]))
    predicted = {"clean_prediction": np.where(wrong, 5, 3), "adversarial_prediction": np.where(wrong, 5, 3)}
    row = _one(make_results([(clean, columns | scores | predicted), attacked]))
    negatives = scores["diversity"][:50]
    assert (row["clean_images"], row["clean_right_images"]) == (50, 30)
    assert row["auc"] == pytest.approx(auc_interval(negatives, adversarial[:40])[0], abs=1e-6)
    expected = auc_interval(negatives[20:], adversarial[:40])
    assert [row[f"auc_right{end}"] for end in ("", "_low", "_high")] == pytest.approx(expected, abs=1e-6)
    assert row["auc_right"] > row["auc"]


def test_the_threshold_is_fixed_on_held_out_images_alone(make_cell: MakeCell, make_results: MakeResults) -> None:
    draws = np.random.default_rng(1)
    compared, held_out, adversarial = draws.normal(1, 1, (3, 100)) - np.array([[0], [0], [1]])
    row = _one(make_results(_run(make_cell, compared, held_out, adversarial, fooled=80)))
    assert (row["clean_images"], row["adversarial_images"]) == (100, 80), "images that fool nobody are not adversarial"
    for rate, percent in ((0.01, "1"), (0.05, "5")):
        threshold = np.quantile(held_out, rate)
        assert (held_out < threshold).mean() <= rate
        assert row[f"true_positive_rate_at_{percent}"] == pytest.approx((adversarial[:80] < threshold).mean(), abs=1e-6)
        assert row[f"false_positive_rate_at_{percent}"] == pytest.approx((compared < threshold).mean(), abs=1e-6)
    assert row["auc"] == pytest.approx(auc_interval(compared, adversarial[:80])[0], abs=1e-6)

    other = _one(make_results(_run(make_cell, compared - 5, held_out, adversarial, fooled=80)))
    for percent in ("1", "5"):
        assert other[f"true_positive_rate_at_{percent}"] == row[f"true_positive_rate_at_{percent}"], (
            "compared images do not move it"
        )
        assert other[f"false_positive_rate_at_{percent}"] > row[f"false_positive_rate_at_{percent}"], (
            "and it is judged on them"
        )
    other = _one(make_results(_run(make_cell, compared, held_out + 5, adversarial, fooled=80)))
    assert other["true_positive_rate_at_5"] == 1 and other["auc"] == row["auc"], "held-out images do, and not the area"


def test_an_attack_that_fools_nobody_has_no_area_and_is_no_failure(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    values = np.arange(20.0)
    row = _one(make_results(_run(make_cell, values, values, values, fooled=0)))
    assert row["adversarial_images"] == 0 and np.isnan(row["auc"]) and np.isnan(row["true_positive_rate_at_1"])


def test_images_that_were_wrong_before_are_not_adversarial(make_cell: MakeCell, make_results: MakeResults) -> None:
    values = np.arange(20.0)
    clean, (attacked, columns) = _run(make_cell, values, values, values, fooled=15)
    columns["clean_prediction"] = np.where(np.arange(20) < 5, 7, 3)
    row = _one(make_results([clean, (attacked, columns)]))
    assert row["adversarial_images"] == 10
    assert row["auc"] == pytest.approx(auc_interval(values, values[5:15])[0], abs=1e-6)


def test_one_attack_of_two_libraries_is_told_apart(make_cell: MakeCell, make_results: MakeResults) -> None:
    values = np.arange(20.0)
    clean, (attacked, columns) = _run(make_cell, values, values, values, fooled=15)
    other = make_cell(Detection(parse_attack("pgd@art(eps=0.1)")), samples=20)
    table = detection_table(make_results([clean, (attacked, columns), (other, columns)]))
    assert set(table["attack"]) == {"pgd@torchattacks", "pgd@art"}


def test_two_names_of_one_ensemble_are_not_counted_twice(make_cell: MakeCell, make_results: MakeResults) -> None:
    values = np.arange(20.0)
    finished = [
        entry
        for name in ("one", "copy")
        for entry in _run(make_cell, values, values, values - 3, 20, defense=name, weights="the same")
    ]
    table = detection_table(make_results(finished))
    assert table.groupby("defense").size().to_dict() == {"one": len(SCORES), "copy": len(SCORES)}


def test_after_extending_a_run_an_attack_meets_the_clean_images_of_its_own_size(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    small, large = np.arange(10.0), np.arange(20.0)
    old = _run(make_cell, small, small, small, 10)
    new = _run(make_cell, large, large, large - 3, 20)
    assert _one(make_results([*old[:1], *new]))["clean_images"] == 20
    fgsm = make_cell(Detection(parse_attack("fgsm(eps=0.1)")), samples=10)
    found = trials(make_results([old[0], (fgsm, old[1][1]), *new]))
    assert [(len(trial.clean), len(trial.held_out)) for trial in found] == [(10, 10), (20, 20)]
    assert [[title for _, title, _ in trial.fooled] for trial in found] == [["fgsm"], ["pgd"]]


def test_seeds_keep_apart(make_cell: MakeCell, make_results: MakeResults) -> None:
    values = np.arange(20.0)
    finished = [
        entry for seed in (0, 1) for entry in _run(make_cell, values, values, values - 3 * (1 + seed), 20, seed=seed)
    ]
    areas = detection_table(make_results(finished)).groupby("seed")["auc"].unique()
    expected = [round(auc_interval(values, values - 3 * (1 + seed))[0], 6) for seed in (0, 1)]
    assert [area.tolist() for area in areas] == [[area] for area in expected]
