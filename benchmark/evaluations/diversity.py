"""Diversity without an attack: log ED of every image, t-SNE of features, and the geometry of some predictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from benchmark.evaluations.preset_table import PresetTable
from benchmark.evaluations.task import (
    EVERYTHING,
    Amount,
    Planned,
    Section,
    Setting,
    Task,
    Written,
    member_name,
    written_none,
)
from benchmark.harness.records import RECORDS, Column, Schema, Span

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchmark.harness.subject import Subject

MAPPED = 1000
"""Number of images whose features are mapped to the plane, as in the paper's Fig. 4."""
FEWEST = 4
"""Smallest number of images for t-SNE: fewer have no neighbourhoods to map."""
SHOWN = 12
"""Number of images whose predictions are kept in full, for the geometry figure."""


@dataclass(frozen=True)
class Diversity(Task):
    """LED of clean images; with the first batch, t-SNE of each member's pooled features and some predictions."""

    evaluation: ClassVar[str] = "diversity"
    records: ClassVar[Schema] = RECORDS.plus(
        Column("led", "float64", "log ensemble diversity, true label removed", float("nan")),
        Column("confidence", "float64", "largest probability of the ensemble's prediction", float("nan")),
        Column("probabilities_{member}", "object", "what a member predicts for one of the first images"),
        Column("tsne_{member}", "object", "place of a member's features in the plane"),
    )

    def written(self) -> Written:
        return written_none({}, "clean")

    @classmethod
    def read(cls, written: Written) -> Diversity:
        return cls()

    def batch(self, subject: Subject, span: Span, seed: int) -> pd.DataFrame:
        import torch

        from defenses.members.diversity import log_ensemble_diversity
        from defenses.members.layers import has_features

        labels, clean = subject.labels[span.rows], subject.clean[span.rows]
        logits = subject.logits[:, span.rows]
        led = log_ensemble_diversity(logits, torch.from_numpy(labels)).double().numpy()
        confidence = subject.ensemble.combination.combine(logits).amax(-1).exp().double().numpy()
        values = {"label": labels, "clean_prediction": clean, "correct": clean == labels, "led": led}
        before = {"p_clean": subject.p_clean[span.rows], "confidence": confidence}
        frame = self.records.frame(span, {**values, **before, "batch_size": span.size})
        if span.first == 0:
            shown = torch.softmax(logits[:, :SHOWN].double(), -1).numpy()
            for k, member in enumerate(shown):
                _add(frame, f"probabilities_{member_name(k)}", list(member))
            mapped = min(MAPPED, span.end)
            mappable = mapped >= FEWEST and all(has_features(member) for member in subject.ensemble.members)
            for k, plane in enumerate(_planes(subject, mapped, seed) if mappable else []):
                _add(frame, f"tsne_{member_name(k)}", list(plane))
        return frame


def _add(frame: pd.DataFrame, name: str, values: list[Any]) -> None:
    frame[name] = pd.Series(values, dtype=object).reindex(frame.index)


def _planes(subject: Subject, count: int, seed: int) -> list[NDArray[np.float32]]:
    """t-SNE (perplexity 30) of the pooled features of each member for the first images."""
    import torch
    from sklearn.manifold import TSNE

    members = [subject.ensemble.member(k) for k in range(len(subject.ensemble))]  # feature sizes may differ
    batches = subject.images[:count].split(500)
    with torch.no_grad():
        features = [torch.cat([member.member_features(images)[0].cpu() for images in batches]) for member in members]
    perplexity = min(30.0, (count - 1) / 3)
    return [TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(rows.numpy()) for rows in features]


@dataclass(frozen=True)
class DiversitySection(Section):
    """``[grid.diversity]``: diversity on clean images."""

    key: ClassVar[str] = "diversity"
    title: ClassVar[str] = "diversity"

    amount: Amount = EVERYTHING

    @property
    def amounts(self) -> tuple[tuple[str, Amount], ...]:
        return ((self.title, self.amount),)

    @classmethod
    def read(cls, table: PresetTable) -> DiversitySection:
        table.only(*Amount.keys)
        return cls(Amount.read(table))

    def plan(self, setting: Setting) -> Iterator[Planned]:
        yield Planned(Diversity(), setting.images(self.amount), whole=True)
