"""Transfer: adversarial images crafted on one member, and classified by every member and the ensemble (Fig. 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from benchmark.attacks import NamedAttack
from benchmark.evaluations.task import (
    AttackSection,
    Planned,
    Setting,
    Task,
    Written,
    member_name,
    member_number,
    read_attack,
    written_attack,
)
from benchmark.harness.records import RECORDS, Column, Schema, Span
from defenses.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

    from benchmark.harness.subject import Subject


@dataclass(frozen=True)
class Transfer(Task):
    """An attack on one member, with all images: untargeted with true labels, or towards random targets."""

    evaluation: ClassVar[str] = "transfer"
    records: ClassVar[Schema] = RECORDS.plus(
        Column("prediction_{member}", "int64", "class that a member, or the ensemble, predicts under attack"),
        Column("clean_{member}", "int64", "class that it predicts for the clean image"),
    )

    named: NamedAttack
    source: int
    """The member that is attacked, counted from 0."""

    @property
    def attack(self) -> NamedAttack:
        return self.named

    @property
    def targeted(self) -> bool:
        return self.named.attack.wants_target

    @property
    def untargeted(self) -> NamedAttack:
        """The untargeted attack, as the preset names it."""
        return replace(self.named, attack=aimed(self.named, False).attack) if self.targeted else self.named

    @property
    def origin(self) -> str:
        return f" from {member_name(self.source)}"

    @property
    def extras(self) -> tuple[Any, ...]:
        return (self.source,)

    def gradients(self, scalars: int, classes: int, members: int) -> float:
        return super().gradients(scalars, classes, members) / members

    def written(self) -> Written:
        return written_attack(self.named, {"source": member_name(self.source)}, "strict")

    @classmethod
    def read(cls, written: Written) -> Transfer:
        return cls(read_attack(written, "source"), member_number(str(written.settings["source"])))

    def batch(self, subject: Subject, span: Span, seed: int) -> pd.DataFrame:
        import torch

        from benchmark.harness.crafting import craft, wrong_labels
        from benchmark.harness.prepared import predicted
        from defenses.members.combination import Random

        labels = subject.labels[span.rows]
        targets = wrong_labels(labels, subject.classes, span.first, seed)
        given = targets if self.targeted else labels
        images = subject.images[span.rows]
        source = subject.member(self.source)
        crafted = craft(source, self.named, images, given, span.first, seed, report=subject.report)
        with torch.no_grad():
            logits = subject.ensemble.member_logits(crafted.images).cpu()
        rule = subject.ensemble.combination
        ensemble = predicted(rule.combine(logits))
        clean = subject.logits[:, span.rows]
        p_correct = (ensemble == labels).astype(float)
        if isinstance(rule, Random):
            p_correct = rule.probability_right(logits, torch.from_numpy(labels)).numpy()
        values: dict[str, Any] = {
            "label": labels,
            "clean_prediction": subject.clean[span.rows],
            "attacked": True,
            "adversarial_prediction": ensemble,
            "correct": ensemble == labels,
            "p_clean": subject.p_clean[span.rows],
            "p_correct": p_correct,
            **({"target": targets} if self.targeted else {}),
            **{f"prediction_{member_name(k)}": predicted(one) for k, one in enumerate(logits)},
            "prediction_ensemble": ensemble,
            **{f"clean_{member_name(k)}": predicted(one) for k, one in enumerate(clean)},
            "clean_ensemble": subject.clean[span.rows],
            **crafted.found,
            **crafted.costs(span.size),
        }
        return self.records.frame(span, values)


def aimed(named: NamedAttack, targeted: bool) -> NamedAttack:
    """The targeted or the untargeted form of the attack."""
    return replace(named, attack=named.attack.aimed(targeted))


@dataclass(frozen=True)
class TransferSection(AttackSection):
    """``[grid.transfer]``: every member as the source, untargeted and targeted."""

    key: ClassVar[str] = "transfer"
    title: ClassVar[str] = "transfer"

    def check(self, chosen: list[NamedAttack]) -> None:
        for named in chosen:
            if not named.attack.can_aim:
                raise BadInput(
                    f"attack {named.name!r} cannot be targeted, which a transfer matrix needs; choose another attack"
                )

    def plan(self, setting: Setting) -> Iterator[Planned]:
        samples = setting.images(self.amount)
        for named in self.named:
            for targeted in (False, True):
                for member in range(setting.members):
                    yield Planned(Transfer(aimed(named, targeted), member), samples)
