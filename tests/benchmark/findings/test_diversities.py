"""diversity.csv has the diversity and the confidence of every ensemble."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from benchmark.cells.cell import Cell
from benchmark.evaluations.diversity import Diversity
from benchmark.findings.diversities import diversity_table
from benchmark.findings.results import Results
from benchmark.reports.page.sentences import _diverse

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]


def test_the_median_of_diversity_and_the_mean_of_confidence(make_cell: MakeCell, make_results: MakeResults) -> None:
    led, confidence = np.array([-8.0, -2.0, -1.0]), np.array([0.5, 0.6, 1.0])
    results = make_results(
        [(make_cell(Diversity(), samples=3), {"led": led, "confidence": confidence, "p_clean": led / -8})]
    )
    row = diversity_table(results).iloc[0]
    assert row["accuracy"] == pytest.approx(100 * 11 / 24, abs=1e-4), "the expected accuracy of a randomised ensemble"
    assert (row["led_median"], row["confidence_mean"], row["samples"]) == (-2.0, 0.7, 3)
    assert any("0.70" in words for words in _diverse(diversity_table(results)))


def test_cells_of_older_versions_have_no_confidence(make_cell: MakeCell, make_results: MakeResults) -> None:
    table = diversity_table(make_results([(make_cell(Diversity(), samples=3), {"led": -np.ones(3)})]))
    assert pd.isna(table.loc[0, "confidence_mean"])
    assert not any("onfidence" in words for words in _diverse(table))
