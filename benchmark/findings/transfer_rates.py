"""Transfer rates: how well adversarial images made on one member fool the others (transfer.csv)."""

from __future__ import annotations

import pandas as pd

from benchmark.cells.cell import attack_titles
from benchmark.evaluations.clean import ENSEMBLE
from benchmark.evaluations.task import member_name
from benchmark.evaluations.transfer import Transfer
from benchmark.findings.results import Results
from benchmark.findings.rows import percent_interval


def transfer_table(results: Results) -> pd.DataFrame:
    """One row per source and target, in percent: accuracy (untargeted) or rate of the target class (targeted)."""
    rows = []
    cells = results.of(Transfer)
    titles = attack_titles(cells)
    for cell in cells:
        assert isinstance(cell.task, Transfer)
        task, records = cell.task, results.records[cell]
        source = member_name(task.source)
        for target in [*map(member_name, range(cell.ensemble.members)), ENSEMBLE]:
            wanted = records["target"] if task.targeted else records["label"]
            hits = int((records[f"prediction_{target}"] == wanted).sum())
            transferred, tried = (int(images.sum()) for images in fooled_both(records, source, target, task.targeted))
            low, high = percent_interval(hits, len(records))
            rows.append(
                {
                    "dataset": cell.images.dataset,
                    "defense": cell.ensemble.defense,
                    "attack": titles[cell.images.dataset, task.name, task.library],
                    "parameters": task.untargeted.parameters,
                    "mode": "targeted" if task.targeted else "untargeted",
                    "seed": cell.conditions.seed,
                    "source": source,
                    "target": target,
                    "measure": "success" if task.targeted else "accuracy",
                    "value": round(100 * hits / len(records), 4),
                    "ci_low": low,
                    "ci_high": high,
                    "samples": len(records),
                    "transfer_rate": round(100 * transferred / tried, 4) if tried else None,
                    "transfer_tried": tried,
                }
            )
    return pd.DataFrame(rows)


def fooled_both(
    records: pd.DataFrame, source: str, target: str, targeted: bool
) -> tuple[pd.Series[bool], pd.Series[bool]]:
    """Of the images that both models classified correctly: those that fool both, and those that fool the source."""
    label = records["label"]
    right = (records[f"clean_{source}"] == label) & (records[f"clean_{target}"] == label)
    if targeted:
        fooled, also = (records[f"prediction_{name}"] == records["target"] for name in (source, target))
    else:
        fooled, also = (records[f"prediction_{name}"] != label for name in (source, target))
    return right & fooled & also, right & fooled
