"""Diversity and confidence of every ensemble on clean images (diversity.csv)."""

from __future__ import annotations

import pandas as pd

from benchmark.evaluations.diversity import Diversity
from benchmark.findings.results import Results


def diversity_table(results: Results) -> pd.DataFrame:
    """A row for every ensemble: median log ensemble diversity, mean confidence, and clean accuracy in percent.

    Confidence is the largest probability of the ensemble's prediction. It is empty for cells of older versions, which
    did not record it.
    """
    rows = []
    for cell in results.of(Diversity):
        records = results.records[cell]
        rows.append(
            {
                "dataset": cell.images.dataset,
                "defense": cell.ensemble.defense,
                "members": cell.ensemble.members,
                "seed": cell.conditions.seed,
                "samples": len(records),
                "accuracy": round(100 * float(records["p_clean"].mean()), 4),
                "led_median": round(float(records["led"].median()), 4),
                "confidence_mean": round(float(records["confidence"].mean()), 4),
                "training": cell.ensemble.training,
            }
        )
    return pd.DataFrame(rows)
