"""Clean accuracy of one member or of the ensemble (Table 1)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmark.attacks import NamedAttack
from benchmark.cells import Cell
from benchmark.evaluation import cost_columns
from benchmark.evaluations import Subject
from benchmark.tiers import FLAGS


def batch(subject: Subject, cell: Cell, attack: NamedAttack | None, first: int, end: int) -> pd.DataFrame:
    """What the cell's classifier, ``net1`` … or ``ensemble``, predicts for clean images."""
    rows = slice(first, end)
    classifier = str(cell.settings["classifier"])
    if classifier == "ensemble":
        predicted = subject.clean[rows]
    else:
        predicted = subject.logits[int(classifier.removeprefix("net")) - 1, rows].argmax(-1)
    labels = subject.labels[rows]
    return pd.DataFrame(
        {
            "index": np.arange(first, end),
            "label": labels.numpy(),
            "clean_prediction": predicted.numpy(),
            "attacked": False,
            "correct": (predicted == labels).numpy(),
            **dict.fromkeys(FLAGS, False),
            **cost_columns(None, end - first),
        }
    )
