"""Transfer: adversarial images made on one member, shown to every member and to the ensemble (Fig. 3)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from benchmark.attacks import NamedAttack
from benchmark.cells import Cell
from benchmark.evaluation import cost_columns, craft, wrong_labels
from benchmark.evaluations import Subject
from defenses.members.diversity import log_mean_probability
from defenses.members.ensemble import Ensemble


def batch(subject: Subject, cell: Cell, attack: NamedAttack | None, first: int, end: int) -> pd.DataFrame:
    """Attack the member named by the cell's ``source`` alone, all images, from the true labels or to drawn targets."""
    assert attack is not None and isinstance(subject.fast, Ensemble)
    source = int(str(cell.settings["source"]).removeprefix("net")) - 1
    rows = slice(first, end)
    labels = subject.labels[rows]
    targets = wrong_labels(labels, subject.classes, first, cell.seed)
    given = targets if attack.attack.wants_target else labels
    crafted = craft(subject.fast.member(source), attack, subject.images[rows], given, first, cell.seed)
    with torch.no_grad():
        logits = subject.ensemble.member_logits(crafted.images).cpu()
    ensemble = log_mean_probability(logits).argmax(-1)
    return pd.DataFrame(
        {
            "index": np.arange(first, end),
            "label": labels.numpy(),
            "clean_prediction": subject.clean[rows].numpy(),
            "target": targets.numpy() if attack.attack.wants_target else np.full(end - first, -1),
            "attacked": True,
            "correct": (ensemble == labels).numpy(),
            **{f"prediction_net{k + 1}": values.argmax(-1).numpy() for k, values in enumerate(logits)},
            "prediction_ensemble": ensemble.numpy(),
            **{f"clean_net{k + 1}": values.argmax(-1).numpy() for k, values in enumerate(subject.logits[:, rows])},
            "clean_ensemble": subject.clean[rows].numpy(),
            **{name: values.numpy() for name, values in crafted.found.items()},
            **cost_columns(crafted, end - first),
        }
    )
