"""Several seeds: mean and standard deviation of every number over them (seeds.csv)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from benchmark.cells.cell import Cell
from benchmark.findings.results import Results
from benchmark.findings.rows import tabled
from benchmark.findings.statistics import spread

COLUMNS = (
    "dataset", "defense", "attack", "library", "parameters", "tier", "samples", "seeds", "trainings", "mean",
    "standard_deviation", "ci_low", "ci_high",
)  # fmt: skip
"""Accuracies are in percent; the interval is that of the mean. With one training, only the attack is random."""


def seed_table(results: Results) -> pd.DataFrame:
    """A row for every defense, attack and tier with several seeds on the same number of images."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in tabled(results):
        if cell in results.records:
            asked = (cell.images.dataset, cell.task.asked, cell.images.samples)
            groups.setdefault((*asked, cell.ensemble.defense), []).append(cell)
    rows = [_row(cells, results) for cells in groups.values() if len(cells) > 1]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(cells: list[Cell], results: Results) -> dict[str, Any]:
    first = cells[0]
    found = spread([100 * float(results.records[cell]["p_correct"].mean()) for cell in cells])
    return {
        "dataset": first.images.dataset,
        "defense": first.ensemble.defense,
        "attack": first.task.name,
        "library": first.task.library,
        "parameters": first.task.parameters,
        "tier": first.task.group,
        "samples": first.images.samples,
        "seeds": len(cells),
        "trainings": len({cell.ensemble.weights for cell in cells}),
        "mean": round(found.mean, 4),
        "standard_deviation": round(found.deviation, 4),
        "ci_low": round(found.low, 4),
        "ci_high": round(found.high, 4),
    }
