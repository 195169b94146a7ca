"""Black-box robustness: images crafted on a surrogate ensemble of the attacker, and classified by the defense."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benchmark.attacks import NamedAttack
from benchmark.evaluations.task import (
    AttackSection,
    Choice,
    Planned,
    Section,
    Setting,
    Task,
    Written,
    read_attack,
    written_attack,
)
from benchmark.harness.records import Span

if TYPE_CHECKING:
    import pandas as pd

    from benchmark.harness.subject import Subject


@dataclass(frozen=True)
class BlackBox(Task):
    """An attack on the surrogate with true labels; clean images that the defense misclassifies count as wrong.

    All images are attacked, whatever the defense predicts for them, so every defense gets the same adversarial images.
    """

    evaluation: ClassVar[str] = "blackbox"
    in_tables: ClassVar[bool] = True

    named: NamedAttack
    surrogate: str
    """sha256 of the surrogate's weights."""

    @property
    def attack(self) -> NamedAttack:
        return self.named

    @property
    def group(self) -> str:
        return "black-box"

    @property
    def origin(self) -> str:
        return " from a surrogate"

    @property
    def used(self) -> dict[str, str]:
        return {"surrogate": self.surrogate[:8], **super().used}

    def written(self) -> Written:
        return written_attack(self.named, {"surrogate": self.surrogate}, self.group)

    @classmethod
    def read(cls, written: Written) -> BlackBox:
        return cls(read_attack(written, "surrogate"), written.settings["surrogate"])

    def batch(self, subject: Subject, span: Span, seed: int) -> pd.DataFrame:
        from benchmark.harness.crafting import craft, expected_answers, judged_afresh, wrong_labels
        from benchmark.harness.prepared import predicted as classes_of

        assert subject.surrogate is not None
        labels, clean = subject.labels[span.rows], subject.clean[span.rows]
        given, target = labels, {}
        if self.named.attack.wants_target:
            given = wrong_labels(labels, subject.classes, span.first, seed)
            target = {"target": given}
        images = subject.images[span.rows]
        crafted = craft(subject.surrogate, self.named, images, given, span.first, seed, report=subject.report)
        output, after = expected_answers(subject, crafted.images, labels, span.size)
        predicted, before = classes_of(output), subject.p_clean[span.rows]
        correct, right = (predicted == labels) & (clean == labels), np.minimum(before, after)
        if subject.draws > 1:  # the smaller of two estimates is too small
            chosen = crafted.kept(images, after <= before).images
            predicted, right = judged_afresh(subject, chosen, labels, span.first)
            correct = predicted == labels
        values: dict[str, Any] = {
            "label": labels,
            "clean_prediction": clean,
            "attacked": True,
            "adversarial_prediction": predicted,
            "correct": correct,
            "p_clean": before,
            "p_correct": right,
            **target,
            **crafted.found,
            **crafted.costs(span.size),
        }
        return self.records.frame(span, values)


@dataclass(frozen=True)
class BlackBoxSection(AttackSection):
    """``[grid.blackbox]``: attacks on a surrogate, by default a baseline with another seed."""

    key: ClassVar[str] = "blackbox"
    title: ClassVar[str] = "black-box"
    compared: ClassVar[bool] = True

    def narrow(self, choice: Choice) -> Section | None:
        return None if choice.surrogate == "none" else super().narrow(choice)

    def plan(self, setting: Setting) -> Iterator[Planned]:
        samples = setting.images(self.amount)
        for named in self.named if setting.surrogate else ():
            yield Planned(BlackBox(named, setting.surrogate or ""), samples)
