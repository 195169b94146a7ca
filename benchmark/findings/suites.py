"""Suites: the images that each attack of tier strong fooled first, and its cost (strong.csv)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from benchmark.evaluations.worst_case import WorstCase, long_stages
from benchmark.findings.results import Results
from benchmark.harness.records import was_right


def suite_table(results: Results) -> pd.DataFrame:
    """Per worst case and attack of its suite: the number of attacked images, of images fooled first, and the cost."""
    rows: list[dict[str, Any]] = []
    for cell in results.of(WorstCase):
        assert isinstance(cell.task, WorstCase)
        records = results.records[cell]
        met = long_stages(records)
        left = int(was_right(records).sum())
        for number, stage in enumerate(cell.task.stages):
            fooled = int((records["broken_at"] == number).sum())
            here = met[met["stage"] == number]
            rows.append(
                {
                    "dataset": cell.images.dataset,
                    "defense": cell.ensemble.defense,
                    "norm": cell.task.limit.norm,
                    "eps": cell.task.limit.radius,
                    "attack": stage.label,
                    "library": f"{stage.named.library} {stage.named.version}",
                    "images": left,
                    "fooled_first": fooled,
                    "fooled_source": None if stage.member is None else int(here["source_fooled"].sum()),
                    "accuracy_after": round(100 * (left - fooled) / len(records), 4),
                    **{
                        name: round(float(here[name].sum()) / left if left else 0.0, 2)
                        for name in ("forwards", "backwards")
                    },
                    "seconds": round(float(here["seconds"].sum()), 2),
                    "seed": cell.conditions.seed,
                }
            )
            left -= fooled
    table = pd.DataFrame(rows)
    if not table.empty:
        table["fooled_source"] = table["fooled_source"].astype("Int64")
    return table
