"""The ROC figure has a curve per attack of its own number of images, and a run that only detects has a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell
from benchmark.evaluations.detection import SCORES, Detection
from benchmark.findings.results import Results
from benchmark.findings.roc_areas import detection_table
from benchmark.reports.figures.drawing import Figure, keep
from benchmark.reports.figures.roc import detection_figures

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]
Report = Callable[..., Path]
Values = NDArray[np.float64]
Finished = list[tuple[Cell, dict[str, Any]]]


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


def _figures(results: Results) -> list[Figure]:
    return detection_figures(results, detection_table(results))


def test_an_attack_that_fools_nobody_is_drawn_all_the_same(make_cell: MakeCell, make_results: MakeResults) -> None:
    values = np.arange(20.0)
    assert len(_figures(make_results(_run(make_cell, values, values, values, fooled=0)))) == 1


def test_one_attack_of_two_libraries_has_a_curve_for_each(make_cell: MakeCell, make_results: MakeResults) -> None:
    values = np.arange(20.0)
    clean, (attacked, columns) = _run(make_cell, values, values, values, fooled=15)
    other = make_cell(Detection(parse_attack("pgd@art(eps=0.1)")), samples=20)
    (figure,) = _figures(make_results([clean, (attacked, columns), (other, columns)]))
    assert set(figure.data["attack"]) == {"pgd@torchattacks(eps=0.1)", "pgd@art(eps=0.1)"}


def test_two_names_of_one_ensemble_are_not_drawn_twice(make_cell: MakeCell, make_results: MakeResults) -> None:
    values = np.arange(20.0)
    finished = [
        entry
        for name in ("one", "copy")
        for entry in _run(make_cell, values, values, values - 3, 20, defense=name, weights="the same")
    ]
    figures = _figures(make_results(finished))
    assert len(figures) == 2
    for figure in figures:
        assert figure.data["attack"].nunique() == 1 and figure.words.count("PGD") == 1


def test_after_extending_a_run_no_figure_is_written_over_by_another(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    small, large = np.arange(10.0), np.arange(20.0)
    old = _run(make_cell, small, small, small, 10)
    new = _run(make_cell, large, large, large - 3, 20)
    assert len(_figures(make_results([*old[:1], *new]))) == 1
    fgsm = make_cell(Detection(parse_attack("fgsm(eps=0.1)")), samples=10)
    figures = _figures(make_results([old[0], (fgsm, old[1][1]), *new]))
    assert len({figure.name for figure in figures}) == 2
    assert [figure.data["attack"].nunique() for figure in figures] == [1, 1]


def test_figures_of_several_seeds_keep_apart(make_cell: MakeCell, make_results: MakeResults) -> None:
    values = np.arange(20.0)
    finished = [
        entry for seed in (0, 1) for entry in _run(make_cell, values, values, values - 3 * (1 + seed), 20, seed=seed)
    ]
    first, second = _figures(make_results(finished))
    assert first.name != second.name and first.words != second.words
    assert first.words.count("PGD") == second.words.count("PGD") == 1


def test_the_curve_runs_from_corner_to_corner_around_its_area(make_cell: MakeCell, make_results: MakeResults) -> None:
    draws = np.random.default_rng(2)
    compared, held_out, adversarial = draws.normal(1, 1, (3, 60)).round(1) - np.array([[0], [0], [1]])
    results = make_results(_run(make_cell, compared, held_out, adversarial, fooled=60))
    (figure,) = _figures(results)
    curve: pd.DataFrame = figure.data[figure.data["score"] == "diversity"]
    points = curve[["false_positive_rate", "true_positive_rate"]].to_numpy()
    assert points[0].tolist() == [0, 0] and points[-1].tolist() == [1, 1]
    assert (np.diff(points, axis=0) >= 0).all()
    steps, heights = np.diff(points[:, 0]), (points[1:, 1] + points[:-1, 1]) / 2
    assert (steps * heights).sum() == pytest.approx(detection_table(results)["auc"].iloc[0], abs=1e-4)


def test_the_page_of_a_run_that_only_detects_speaks_of_that_and_has_no_empty_part(
    make_cell: MakeCell, report: Report
) -> None:
    values = np.arange(20.0)
    folder = report(_run(make_cell, values, values, values - 3, fooled=20))
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "AUC between" in page and "This run has no attack" not in page
    assert "Clean accuracy" not in page and 'id="glance"' not in page and 'id="tiers"' not in page
    assert '<figure class="wide' in page, "five panels side by side"


def test_the_panels_of_a_figure_have_found_their_places_before_it_is_kept(
    make_cell: MakeCell, make_results: MakeResults, tmp_path: Path
) -> None:
    values = np.arange(20.0)
    (figure,) = _figures(make_results(_run(make_cell, values, values, values - 3, fooled=20)))
    keep(tmp_path, [figure])
    first = (tmp_path / f"{figure.name}.svg").read_bytes()
    keep(tmp_path, [figure])
    assert (tmp_path / f"{figure.name}.svg").read_bytes() == first, "another drawing moves nothing"
