"""Detection: how well scores of the ensemble's prediction separate adversarial and clean images (ROC figure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchmark.attacks import NamedAttack
from benchmark.evaluations.task import (
    AttackSection,
    Planned,
    Setting,
    Task,
    Written,
    read_attack,
    written_attack,
    written_none,
)
from benchmark.harness.records import RECORDS, Column, Schema, Span

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from benchmark.harness.subject import Subject
    from defenses.members.combination import Combination

SCORES = {
    "diversity": "log ensemble diversity, predicted label removed",
    "diversity_true": "log ensemble diversity, true label removed (not deployable)",
    "confidence": "largest probability of the ensemble's prediction",
    "entropy": "minus the entropy of the ensemble's prediction",
    "agreement": "share of the members that predict what the ensemble predicts",
}
"""Each score is high for normal images, so a detector raises its alarm below a threshold."""


def scores(logits: Tensor, labels: Tensor, rule: Combination) -> dict[str, Tensor]:
    """Every score of every image, from member logits (K, N, L) and the rule that combines them."""
    from defenses.members.diversity import entropy, log_ensemble_diversity

    log_probability = rule.combine(logits)
    predicted = log_probability.argmax(-1)
    return {
        "diversity": log_ensemble_diversity(logits, predicted),
        "diversity_true": log_ensemble_diversity(logits, labels),
        "confidence": log_probability.amax(-1).exp(),
        "entropy": -entropy(log_probability),
        "agreement": (logits.argmax(-1) == predicted).double().mean(0),
    }


@dataclass(frozen=True)
class Detection(Task):
    """Scores of adversarial images, crafted from all images with true labels; or scores of the clean images."""

    evaluation: ClassVar[str] = "detection"
    records: ClassVar[Schema] = RECORDS.plus(
        *(Column(name, "float64", words, float("nan")) for name, words in SCORES.items())
    )

    named: NamedAttack | None
    """None for clean images."""
    compared: int | None = None
    """Number of first clean images that are compared with adversarial images; the others set the threshold."""

    @property
    def attack(self) -> NamedAttack | None:
        return self.named

    @property
    def parameters(self) -> str:
        return super().parameters if self.named else f"compared={self.compared}"

    @property
    def extras(self) -> tuple[Any, ...]:
        return (self.compared,)

    def written(self) -> Written:
        if self.named:
            return written_attack(self.named, {}, "strict")
        return written_none({"compared": self.compared}, "clean")

    @classmethod
    def read(cls, written: Written) -> Detection:
        if "compared" in written.settings:
            return cls(None, int(written.settings["compared"]))
        return cls(read_attack(written))

    def batch(self, subject: Subject, span: Span, seed: int) -> pd.DataFrame:
        import torch

        from benchmark.harness.crafting import craft
        from benchmark.harness.prepared import predicted

        labels = subject.labels[span.rows]
        logits = subject.logits[:, span.rows]
        found: dict[str, Any] = {"batch_size": span.size}
        if self.named:
            images = subject.images[span.rows]
            crafted = craft(subject.fast, self.named, images, labels, span.first, seed, report=subject.report)
            found = {**crafted.found, **crafted.costs(span.size)}
            with torch.no_grad():
                logits = subject.ensemble.member_logits(crafted.images).cpu()
        rule = subject.ensemble.combination
        predictions = predicted(rule.combine(logits))
        values: dict[str, Any] = {
            "label": labels,
            "clean_prediction": subject.clean[span.rows],
            "adversarial_prediction": predictions,
            "attacked": self.named is not None,
            "correct": predictions == labels,
            **{name: one.double().numpy() for name, one in scores(logits, torch.from_numpy(labels), rule).items()},
            **found,
        }
        return self.records.frame(span, values)


@dataclass(frozen=True)
class DetectionSection(AttackSection):
    """``[grid.detection]``: clean images, and half as many images under each attack."""

    key: ClassVar[str] = "detection"
    title: ClassVar[str] = "detection"

    def plan(self, setting: Setting) -> Iterator[Planned]:
        samples = min(setting.images(self.amount), setting.test_size // 2)
        yield Planned(Detection(None, samples), 2 * samples)
        for named in self.named:
            yield Planned(Detection(named), samples)
