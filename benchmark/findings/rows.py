"""Rows: the accuracy of every cell of the tables with its interval, its cost and its flags (table.csv)."""

from __future__ import annotations

from typing import Any

import pandas as pd
from numpy.typing import ArrayLike

from benchmark.cells.cell import Cell
from benchmark.findings import sequential
from benchmark.findings.diagnostics import Diagnosis, diagnose
from benchmark.findings.results import Results
from benchmark.findings.statistics import accuracy_interval, mean_interval

COLUMNS = (
    "dataset", "defense", "members", "network", "attack", "library", "parameters", "tier", "samples",
    "clean_accuracy", "accuracy", "ci_low", "ci_high", "published", "difference", "unmoved", "out_of_ball",
    "zero_gradient", "forwards", "backwards", "seconds", "seed", "out_of_box", "not_finite", "training", "flags",
)  # fmt: skip
"""Accuracies are in percent; counts are images; forwards and backwards are per image."""


def summarise(cell: Cell, records: pd.DataFrame, diagnosis: Diagnosis | None = None) -> dict[str, Any]:
    """The row of table.csv for a finished cell; without the diagnosis of its run, the cell is checked by itself."""
    count = len(records)
    accuracy = 100 * float(records["p_correct"].sum()) / count
    low, high = _interval(cell, records)
    published = published_beside(cell)
    return {
        **_names(cell),
        "samples": count,
        "clean_accuracy": round(100 * float(records["p_clean"].mean()), 4),
        "accuracy": round(accuracy, 4),
        "ci_low": low,
        "ci_high": high,
        "published": published,
        "difference": None if published is None else round(accuracy - published, 4),
        **{name: int(records[name].sum()) for name in ("unmoved", "out_of_ball", "zero_gradient")},
        "forwards": round(float(records["forwards"].mean()), 2),
        "backwards": round(float(records["backwards"].mean()), 2),
        "seconds": round(float(records["seconds"].sum()), 2),
        **{name: int(records[name].sum()) for name in ("out_of_box", "not_finite")},
        "flags": (diagnosis or diagnose([(cell, records)])).words(cell),
    }


def published_beside(cell: Cell) -> float | None:
    """The paper's number, for a cell with the paper's attack; tiers strict and strong have no such number."""
    return cell.published if cell.task.tier in (None, "paper") else None


def unfinished(cell: Cell, words: str) -> dict[str, Any]:
    """The row of a cell without a result; ``words`` give the reason."""
    return {**_names(cell), "samples": 0, "flags": words}


def percent_interval(correct: int, count: int) -> tuple[float, float]:
    """The interval of an accuracy, in percent."""
    low, high = accuracy_interval(correct, count)
    return round(100 * low, 4), round(100 * high, 4)


def percent_mean_interval(right: ArrayLike) -> tuple[float, float]:
    """The interval of an accuracy, in percent, from each image's probability of a correct prediction."""
    low, high = mean_interval(right)
    return round(100 * low, 4), round(100 * high, 4)


def _interval(cell: Cell, records: pd.DataFrame) -> tuple[float, float]:
    """The 95 % interval of the accuracy, in percent; for a cell that may have stopped early, it holds at any time."""
    if cell.images.order == "file" or not cell.task.attacks:
        return percent_mean_interval(records["p_correct"])
    found = sequential.interval(records["p_correct"])
    return round(100 * found.low, 4), round(100 * found.high, 4)


def _names(cell: Cell) -> dict[str, Any]:
    task, version = cell.task, cell.task.attack.version if cell.task.attack else ""
    return {
        "dataset": cell.images.dataset,
        "defense": cell.ensemble.defense,
        "members": cell.ensemble.members,
        "network": cell.ensemble.network,
        "attack": task.name,
        "library": f"{task.library} {version}".strip(),
        "parameters": task.parameters,
        "tier": task.group,
        "seed": cell.conditions.seed,
        "training": cell.ensemble.training,
    }


def tabled(results: Results) -> list[Cell]:
    """The cells that are rows of the tables."""
    return [cell for cell in results.cells if cell.task.in_tables]


def table_of(results: Results) -> pd.DataFrame:
    """A row per cell of the tables, finished or not, in the manifest's order."""
    rows = []
    for cell in tabled(results):
        if cell in results.records:
            rows.append(summarise(cell, results.records[cell], results.diagnosis))
        else:
            reason = results.failures.get(cell)
            rows.append(unfinished(cell, f"failed: {reason}" if reason else "not run yet"))
    return pd.DataFrame(rows, columns=list(COLUMNS))
