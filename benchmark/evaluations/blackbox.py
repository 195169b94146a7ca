"""Black-box robustness: images made on a surrogate ensemble that the attacker trained, shown to the defense."""

from __future__ import annotations

import pandas as pd

from benchmark.attacks import NamedAttack
from benchmark.cells import Cell
from benchmark.evaluation import attack_batch
from benchmark.evaluations import Subject


def batch(subject: Subject, cell: Cell, attack: NamedAttack | None, first: int, end: int) -> pd.DataFrame:
    """Attack the surrogate with true labels; the defense judges, and what it got wrong before counts as wrong."""
    assert attack is not None and subject.surrogate is not None
    rows = slice(first, end)
    return attack_batch(
        subject.ensemble,
        attack,
        "strict",
        subject.images[rows],
        subject.labels[rows].to(subject.images.device),
        subject.clean[rows],
        first,
        cell.seed,
        subject.classes,
        fast=subject.surrogate,
    )
