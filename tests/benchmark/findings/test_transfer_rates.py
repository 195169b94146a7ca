"""The transfer matrix counts hits, and which of the images that fool their source fool another member too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell
from benchmark.evaluations.transfer import Transfer
from benchmark.findings.results import Results
from benchmark.findings.transfer_rates import transfer_table

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]

PREDICTED = {
    "prediction_net1": np.where(np.arange(10) < 6, 3, 7),
    "prediction_net2": np.where(np.arange(10) < 2, 3, 7),
    "prediction_ensemble": 3,
    "clean_net1": np.where(np.arange(10) < 9, 3, 7),
    "clean_net2": 3,
    "clean_ensemble": 7,
}


def test_the_transfer_matrix_counts_hits_and_what_was_right_before(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    cell = make_cell(Transfer(parse_attack("pgd(eps=0.1)"), 1), samples=10)
    table = transfer_table(make_results([(cell, PREDICTED)])).set_index("target")
    assert set(table["source"]) == {"net2"} and set(table["measure"]) == {"accuracy"}
    assert table["value"].to_dict() == {"net1": 60, "net2": 20, "ensemble": 100}
    # both right before: images 0 to 8; of these the source is fooled on 2 to 8, and net1 too on 6 to 8
    assert table.loc["net1", "transfer_tried"] == 7
    assert table.loc["net1", "transfer_rate"] == pytest.approx(300 / 7, abs=1e-3)
    assert table.loc["ensemble", "transfer_tried"] == 0 and np.isnan(table.loc["ensemble", "transfer_rate"])


def test_a_targeted_attack_is_counted_by_its_target_and_named_as_it_was_asked_for(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    cell = make_cell(Transfer(parse_attack("pgd(eps=0.1,targeted=true)"), 1), samples=10)
    columns = {**PREDICTED, "target": np.where(np.arange(10) < 5, 7, 8)}
    table = transfer_table(make_results([(cell, columns)])).set_index("target")
    assert set(zip(table["parameters"], table["mode"], table["measure"], strict=True)) == {
        ("eps=0.1", "targeted", "success")
    }
    assert table["value"].to_dict() == {"net1": 0, "net2": 30, "ensemble": 0}, "net2 takes images 2 to 4 for class 7"
    assert (table.loc["net1", "transfer_tried"], table.loc["net1", "transfer_rate"]) == (3, 0)


def test_transfer_by_two_libraries_is_told_apart(make_cell: MakeCell, make_results: MakeResults) -> None:
    cells = [
        make_cell(Transfer(parse_attack(f"pgd@{name}(eps=0.1)"), 1), samples=10) for name in ("torchattacks", "art")
    ]
    table = transfer_table(make_results([(cell, PREDICTED) for cell in cells]))
    assert set(table["attack"]) == {"pgd@torchattacks", "pgd@art"}


def test_a_run_without_transfer_has_no_matrix(make_results: MakeResults) -> None:
    assert transfer_table(make_results([])).empty
