"""The gap between the tiers: the worst case of each tier on the same images (gap.csv)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmark.cells.cell import Cell, in_both_tiers, setting
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import WorstCase
from benchmark.findings.results import Results
from benchmark.findings.rows import percent_mean_interval, published_beside


def gap_table(results: Results) -> pd.DataFrame:
    """Per defense and bound with a worst case: the worst case of each tier on the same images, in percent.

    Tiers paper and strict use their common attacks, so that they differ only in the way of attacking.
    """
    found = []
    for cell in results.of(WorstCase):
        assert isinstance(cell.task, WorstCase)
        strong = results.records[cell]["p_correct"].to_numpy()
        row: dict[str, Any] = {
            "dataset": cell.images.dataset,
            "defense": cell.ensemble.defense,
            "norm": cell.task.limit.norm,
            "eps": cell.task.limit.radius,
            "seed": cell.conditions.seed,
            "images": len(strong),
        }
        beside = [other for other in results.finished if _beside(cell, other)]
        published = [number for other in beside if (number := published_beside(other)) is not None]
        row["published"] = min(published) if published else None
        large = [other for other in beside if other.images.samples >= len(strong)]
        both = in_both_tiers(large)
        for tier in ("paper", "strict"):
            outcomes = [
                results.records[other]["p_correct"].to_numpy()[: len(strong)]
                for other in large
                if other.task.tier == tier and (not both or setting(other) in both)
            ]
            worst = np.minimum.reduce(outcomes) if outcomes else None
            row |= _measured(tier, worst) | {f"{tier}_attacks": len(outcomes)}
        row |= _measured("strong", strong) | {"suite": cell.task.suite}
        found.append(row | _measured("clean", results.records[cell]["p_clean"].to_numpy()))
    return pd.DataFrame(found)


def _measured(tier: str, right: NDArray[np.float64] | None) -> dict[str, float | None]:
    """Accuracy in percent with its interval."""
    if right is None:
        return {tier: None, f"{tier}_low": None, f"{tier}_high": None}
    low, high = percent_mean_interval(right)
    return {tier: round(100 * float(right.mean()), 4), f"{tier}_low": low, f"{tier}_high": high}


def _beside(strong: Cell, other: Cell) -> bool:
    """True for an untargeted white-box attack within the same bound on the same ensemble."""
    mine, theirs = strong.ensemble, other.ensemble
    same = (strong.column, mine.members, mine.weights) == (other.column, theirs.members, theirs.weights)
    task = other.task
    return (
        same and isinstance(task, WhiteBox) and task.bound == strong.task.bound and not task.named.attack.wants_target
    )
