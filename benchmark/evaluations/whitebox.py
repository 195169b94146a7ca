"""White-box robustness: the ensemble itself is attacked (Tables 2 to 5)."""

from __future__ import annotations

import pandas as pd

from benchmark.attacks import NamedAttack
from benchmark.cells import Cell
from benchmark.evaluation import attack_batch
from benchmark.evaluations import Subject

SHOWN = 5
"""Images of every cell that are kept for a look."""


def batch(subject: Subject, cell: Cell, attack: NamedAttack | None, first: int, end: int) -> pd.DataFrame:
    """Attack the images from ``first`` to ``end`` by the rules of the cell's tier."""
    assert attack is not None
    rows = slice(first, end)
    return attack_batch(
        subject.ensemble,
        attack,
        cell.tier,
        subject.images[rows],
        subject.labels[rows].to(subject.images.device),
        subject.outputs[rows],
        first,
        cell.seed,
        subject.classes,
        subject.fast,
        keep=SHOWN if first == 0 else 0,
        keep_successes=subject.keep_images,
    )
