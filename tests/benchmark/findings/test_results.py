"""A run folder becomes results: every cell asked for, records of the finished ones, and nothing heavy to read them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.detection import Detection
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings.comparison import compare
from benchmark.findings.results import Results, read_results

ROOT = Path(__file__).parents[3]
MakeCell = Callable[..., Cell]
MakeStore = Callable[..., Store]
MakeResults = Callable[..., Results]

PGD = WhiteBox(parse_attack("pgd(eps=0.1)"), "strict")


def test_what_a_folder_holds_is_what_was_measured(
    make_cell: MakeCell, make_store: MakeStore, make_results: MakeResults
) -> None:
    finished = [
        (make_cell(Clean()), {}),
        (make_cell(PGD, "ours", published=48.4), {"correct": np.arange(50) < 20}),
        (make_cell(PGD, "theirs"), {"correct": np.arange(50) < 30, "never_left": False}),
    ]
    read, made = read_results(make_store(finished)), make_results(finished)
    assert read.cells == made.cells and read.finished == made.finished
    assert [cell.published for cell in read.cells] == [None, 48.4, None]
    for cell in read.cells:
        pd.testing.assert_frame_equal(read.records[cell], made.records[cell])
    pd.testing.assert_frame_equal(compare(read, "ours", "theirs"), compare(made, "ours", "theirs"))


def test_cells_that_failed_or_were_not_run_are_there_without_records(
    make_cell: MakeCell, make_store: MakeStore
) -> None:
    done, failed, missing = (make_cell(PGD, name) for name in ("done", "failed", "missing"))
    store = make_store([(done, {})])
    store.write_manifest([done, failed, missing], {"preset": "demo", "title": "By hand", "commands": []})
    store.write_failure(failed, "ValueError: because")
    results = read_results(store)
    assert results.cells == (done, failed, missing) and results.finished == [done]
    assert results.failures == {failed: "ValueError: because"}
    assert results.title == "By hand" and not results.compared


def test_finished_cells_are_found_by_their_evaluation(make_cell: MakeCell, make_results: MakeResults) -> None:
    tasks = (Clean(), PGD, Detection(None, 25), Detection(PGD.named))
    cells = [make_cell(task) for task in tasks]
    scores = dict.fromkeys(("diversity", "diversity_true", "confidence", "entropy", "agreement"), 0.0)
    results = make_results([(cells[0], {}), (cells[1], {}), (cells[2], scores)])
    assert results.of(WhiteBox) == [cells[1]]
    assert results.of(Detection) == [cells[2]], "the other one is not finished"


def test_reading_results_and_drawing_them_needs_no_torch() -> None:
    modules = ("benchmark.findings.results", "benchmark.findings.crosscheck", "benchmark.findings.comparison")
    code = f"import sys, {', '.join(modules)}, benchmark.reports; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
