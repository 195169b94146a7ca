"""Detection: how well scores of an ensemble's own prediction tell adversarial images from clean ones (ROC figure)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmark.attacks import NamedAttack
from benchmark.cells import Cell
from benchmark.evaluation import cost_columns, craft
from benchmark.evaluations import Subject
from benchmark.tiers import FLAGS
from defenses.members.diversity import ensemble_entropy, log_ensemble_diversity, log_mean_probability

SCORES = {
    "diversity": "log ensemble diversity, predicted label removed",
    "diversity_true": "log ensemble diversity, true label removed (not deployable)",
    "confidence": "largest mean probability",
    "entropy": "minus the entropy of the mean prediction",
    "agreement": "share of the members that predict what the ensemble predicts",
}
"""Each is high for what looks normal, so a detector raises its alarm below a threshold."""


def scores(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Every score of every image, from member logits (K, N, L)."""
    log_probability = log_mean_probability(logits)
    predicted = log_probability.argmax(-1)
    return {
        "diversity": log_ensemble_diversity(logits, predicted),
        "diversity_true": log_ensemble_diversity(logits, labels),
        "confidence": log_probability.amax(-1).exp(),
        "entropy": -ensemble_entropy(logits),
        "agreement": (logits.argmax(-1) == predicted).double().mean(0),
    }


def batch(subject: Subject, cell: Cell, attack: NamedAttack | None, first: int, end: int) -> pd.DataFrame:
    """Scores of clean images (no attack), or of adversarial ones made from all of them with their true labels."""
    rows = slice(first, end)
    labels = subject.labels[rows]
    crafted = None
    logits = subject.logits[:, rows]
    if attack is not None:
        crafted = craft(subject.fast, attack, subject.images[rows], labels, first, cell.seed)
        with torch.no_grad():
            logits = subject.ensemble.member_logits(crafted.images).cpu()
    predicted = log_mean_probability(logits).argmax(-1)
    found = crafted.found if crafted else {name: torch.zeros(end - first, dtype=torch.bool) for name in FLAGS}
    return pd.DataFrame(
        {
            "index": np.arange(first, end),
            "label": labels.numpy(),
            "clean_prediction": subject.clean[rows].numpy(),
            "adversarial_prediction": predicted.numpy(),
            "attacked": attack is not None,
            "correct": (predicted == labels).numpy(),
            **{name: values.double().numpy() for name, values in scores(logits, labels).items()},
            **{name: values.numpy() for name, values in found.items()},
            **cost_columns(crafted, end - first),
        }
    )
