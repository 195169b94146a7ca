"""A suite says which of its attacks met how many images, fooled how many of them first, and at what cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from benchmark.attacks import parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import Stage, WorstCase
from benchmark.findings.results import Results
from benchmark.findings.suites import suite_table

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]


def test_each_attack_is_credited_with_what_it_fooled_first_and_charged_for_what_it_met(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    fgsm, pgd = (replace(parse_attack(text), version="3.5.1") for text in ("fgsm(eps=0.1)", "pgd(eps=0.1)"))
    task = WorstCase(Bound("linf", 0.1), "full", (Stage(fgsm), Stage(pgd, 1), Stage(pgd)))
    # of ten images one was wrong before, four fall to FGSM, two to PGD on a member and one to PGD on the ensemble
    met = [0, *[1] * 4, *[2] * 2, *[3] * 3]
    parts = [{"forwards": 2.0, "backwards": 1.0, "seconds": 0.5}, {"forwards": 4.0, "backwards": 3.0, "seconds": 1.0}]
    log = [
        [
            {"stage": stage, **parts[min(stage, 1)], "source_fooled": image != 9 if stage == 1 else None}
            for stage in range(count)
        ]
        for image, count in enumerate(met)
    ]
    columns = {
        "clean_prediction": [5, *[3] * 9],
        "correct": [False] * 8 + [True] * 2,
        "broken_at": [-1, 0, 0, 0, 0, 1, 1, 2, -1, -1],
        "stages": log,
    }
    table = suite_table(make_results([(make_cell(task, samples=10), columns)]))
    assert table["attack"].tolist() == ["fgsm(eps=0.1)", "pgd(eps=0.1) from net2", "pgd(eps=0.1)"]
    assert (table["library"] == "torchattacks 3.5.1").all() and (table["eps"] == 0.1).all()
    assert table["images"].tolist() == [9, 5, 3]
    assert table["fooled_first"].tolist() == [4, 2, 1]
    assert table["accuracy_after"].tolist() == [50, 30, 20]
    assert table["fooled_source"].isna().tolist() == [True, False, True]
    assert table["fooled_source"][1] == 4, "its own member, on all that it met but one"
    assert table["forwards"].tolist() == [2, 4, 4] and table["backwards"].tolist() == [1, 3, 3]
    assert table["seconds"].tolist() == pytest.approx([4.5, 5.0, 3.0])


def test_an_attack_that_met_no_image_has_no_cost(make_cell: MakeCell, make_results: MakeResults) -> None:
    pgd = parse_attack("pgd(eps=0.1)")
    task = WorstCase(Bound("linf", 0.1), "full", (Stage(pgd), Stage(pgd, 0)))
    log = [[{"stage": 0, "forwards": 2.0, "backwards": 2.0, "seconds": 0.1, "source_fooled": None}]] * 10
    columns = {"correct": False, "broken_at": np.zeros(10, dtype=int), "stages": log}
    last = suite_table(make_results([(make_cell(task, samples=10), columns)])).iloc[1]
    assert (last["images"], last["fooled_first"], last["fooled_source"]) == (0, 0, 0)
    assert (last["forwards"], last["seconds"], last["accuracy_after"]) == (0, 0, 0)


def test_a_run_without_a_worst_case_has_no_suites(make_cell: MakeCell, make_results: MakeResults) -> None:
    pgd = WhiteBox(parse_attack("pgd(eps=0.1)"), "strict")
    assert suite_table(make_results([(make_cell(pgd), {})])).empty
