"""A row of table.csv says what was measured, how sure it is, and what speaks against it in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.diversity import Diversity
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings.results import Results
from benchmark.findings.rows import COLUMNS, summarise, table_of

MakeCell = Callable[..., Cell]
MakeRecords = Callable[[Cell, dict[str, Any]], pd.DataFrame]
MakeResults = Callable[..., Results]

PGD = WhiteBox(parse_attack("pgd(eps=0.1)"), "strict")
COUNT = 100


def _first(count: int) -> Any:
    return np.arange(COUNT) < count


def test_a_row_has_percentages_an_interval_and_the_published_number(
    make_cell: MakeCell, make_records: MakeRecords
) -> None:
    pgd = replace(PGD, rules="paper", named=replace(PGD.named, version="3.5.1"))
    cell = make_cell(pgd, samples=COUNT, batch_size=50, published=48.4)
    costs = {"forwards": 10.0, "backwards": 10.0, "seconds": 0.01}
    row = summarise(cell, make_records(cell, {"correct": _first(50), **costs}))
    assert set(row) == set(COLUMNS)
    assert (row["accuracy"], row["clean_accuracy"], row["published"]) == (50.0, 100.0, 48.4)
    assert row["difference"] == pytest.approx(1.6)
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((39.8321, 60.1679))
    assert (row["forwards"], row["seconds"], row["library"]) == (10.0, 1.0, "torchattacks 3.5.1")
    assert row["flags"] == ""


def test_a_table_has_the_columns_in_their_order_and_a_row_per_cell_of_the_tables(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    cells = [make_cell(task, samples=COUNT) for task in (Clean(0), Clean(), PGD)]
    other = make_cell(Diversity(), samples=COUNT)
    table = table_of(make_results([*((cell, {}) for cell in cells), (other, {"led": -1.0})]))
    assert tuple(table.columns) == COLUMNS
    assert table["parameters"].tolist() == ["classifier=net1", "classifier=ensemble", "eps=0.1"]
    assert table["tier"].tolist() == ["clean", "clean", "strict"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"unmoved": 100}, "unmoved: the attack changed 0 of 100 images"),
        ({"zero_gradient": 40}, "zero-gradient: the gradient is zero on 40 of 100 images"),
        ({"not_finite": 1}, "not-finite: 1 of 100 images are not finite and count as not fooled"),
        ({"out_of_ball": 2}, "out-of-ball: 2 of 100 images left the eps-ball and were projected back"),
        ({"out_of_box": 3}, "out-of-box: 3 of 100 images left [0, 1] and were clipped"),
    ],
)
def test_what_a_reader_must_know_is_said_in_words(
    flags: dict[str, int], words: str, make_cell: MakeCell, make_records: MakeRecords
) -> None:
    cell = make_cell(PGD, samples=COUNT)
    seen = {name: _first(count) for name, count in flags.items()}
    row = summarise(cell, make_records(cell, {"correct": _first(90), **seen}))
    assert row["flags"] == words
    assert {name: row[name] for name in flags} == flags


def test_images_that_were_not_to_be_attacked_do_not_count_as_unmoved(
    make_cell: MakeCell, make_records: MakeRecords
) -> None:
    cell = make_cell(PGD, samples=COUNT)
    records = make_records(cell, {"correct": False, "attacked": False, "clean_prediction": 0})
    assert summarise(cell, records)["flags"] == ""


def test_what_other_attacks_say_against_a_number_is_in_its_row(make_cell: MakeCell, make_results: MakeResults) -> None:
    single = make_cell(WhiteBox(parse_attack("fgsm(eps=0.1)"), "strict"), samples=COUNT)
    results = make_results(
        [(single, {"correct": _first(40)}), (make_cell(PGD, samples=COUNT), {"correct": _first(80)})]
    )
    words = "accuracy 40.0 % under FGSM, ε=0.1, but 80.0 % under PGD, ε=0.1, on the same 100 images"
    flags = table_of(results).set_index("attack")["flags"]
    assert flags.to_dict() == {"fgsm": "", "pgd": f"single-step-wins: {words}"}


def test_a_cell_that_failed_or_did_not_run_is_a_row_with_the_reason(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    one, two = make_cell(PGD, "one"), make_cell(PGD, "two")
    table = table_of(replace(make_results([]), cells=(one, two), failures={one: "ValueError: because"}))
    assert table["flags"].tolist() == ["failed: ValueError: because", "not run yet"]
    assert table["defense"].tolist() == ["one", "two"] and table["samples"].tolist() == [0, 0]
    assert table["accuracy"].isna().all()
