"""Black-box robustness: images made on a surrogate ensemble that the attacker trained, shown to the defense."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmark.attacks import NamedAttack
from benchmark.cells import Cell
from benchmark.evaluation import cost_columns, craft, wrong_labels
from benchmark.evaluations import Subject
from benchmark.models import predict


def batch(subject: Subject, cell: Cell, attack: NamedAttack | None, first: int, end: int) -> pd.DataFrame:
    """Attack the surrogate with true labels; the defense judges, and what it got wrong before counts as wrong.

    All images are attacked, whatever the defense makes of them: so every defense gets the very same ones.
    """
    assert attack is not None and subject.surrogate is not None
    rows = slice(first, end)
    labels, clean = subject.labels[rows], subject.clean[rows]
    targets = wrong_labels(labels, subject.classes, first, cell.seed) if attack.attack.wants_target else None
    given = labels if targets is None else targets
    crafted = craft(subject.surrogate, attack, subject.images[rows], given, first, cell.seed)
    predicted = predict(subject.ensemble, crafted.images, end - first)
    return pd.DataFrame(
        {
            "index": np.arange(first, end),
            "label": labels.numpy(),
            "clean_prediction": clean.numpy(),
            "target": np.full(end - first, -1) if targets is None else targets.numpy(),
            "attacked": True,
            "adversarial_prediction": predicted.numpy(),
            "correct": ((predicted == labels) & (clean == labels)).numpy(),
            **{name: values.numpy() for name, values in crafted.found.items()},
            **cost_columns(crafted, end - first),
        }
    )
