"""Diversity without an attack: log ED of every image, features in the plane, the geometry of chosen predictions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from benchmark.attacks import NamedAttack
from benchmark.cells import Cell
from benchmark.evaluation import cost_columns
from benchmark.evaluations import Subject
from benchmark.tiers import FLAGS
from defenses.members.diversity import log_ensemble_diversity
from defenses.members.ensemble import has_features

MAPPED = 1000
"""Images whose features are mapped to the plane, as in the paper's Fig. 4."""
FEWEST = 4
"""Fewer images than this have no neighbourhoods to map."""
SHOWN = 12
"""Images whose predictions are kept in full, for the geometry picture."""


def batch(subject: Subject, cell: Cell, attack: NamedAttack | None, first: int, end: int) -> pd.DataFrame:
    """LED of clean images; with the first batch, t-SNE of each member's pooled features and some predictions."""
    rows = slice(first, end)
    labels = subject.labels[rows]
    logits = subject.logits[:, rows]
    frame = pd.DataFrame(
        {
            "index": np.arange(first, end),
            "label": labels.numpy(),
            "clean_prediction": subject.clean[rows].numpy(),
            "attacked": False,
            "correct": (subject.clean[rows] == labels).numpy(),
            "led": log_ensemble_diversity(logits, labels).double().numpy(),
            **dict.fromkeys(FLAGS, False),
            **cost_columns(None, end - first),
        }
    )
    if first == 0:
        shown = torch.softmax(logits[:, :SHOWN].double(), -1).numpy()
        for k, member in enumerate(shown):
            frame[f"probabilities_net{k + 1}"] = pd.Series(list(member), dtype=object).reindex(frame.index)
        mapped = min(MAPPED, end)
        mappable = mapped >= FEWEST and all(has_features(member) for member in subject.ensemble.members)
        for k, plane in enumerate(_planes(subject, mapped, cell.seed) if mappable else []):
            frame[f"tsne_net{k + 1}"] = pd.Series(list(plane), dtype=object).reindex(frame.index)
    return frame


def _planes(subject: Subject, count: int, seed: int) -> list[np.ndarray[tuple[int, int], np.dtype[np.float32]]]:
    """t-SNE (perplexity 30) of the pooled features of each member for the first images."""
    from sklearn.manifold import TSNE

    members = [subject.ensemble.member(k) for k in range(len(subject.ensemble))]  # whose features may differ in size
    batches = subject.images[:count].split(500)
    with torch.no_grad():
        features = [torch.cat([member.member_features(images)[0].cpu() for images in batches]) for member in members]
    perplexity = min(30.0, (count - 1) / 3)
    return [TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(rows.numpy()) for rows in features]
