"""Clean accuracy of every member and of the ensemble (Table 1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchmark.evaluations.preset_table import PresetTable
from benchmark.evaluations.task import (
    EVERYTHING,
    Amount,
    Choice,
    Planned,
    Section,
    Setting,
    Task,
    Written,
    member_name,
    member_number,
    written_none,
)
from benchmark.harness.records import Span

if TYPE_CHECKING:
    import pandas as pd

    from benchmark.harness.subject import Subject

ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class Clean(Task):
    """Predictions for clean images, by one member or by the ensemble."""

    evaluation: ClassVar[str] = "clean"
    in_tables: ClassVar[bool] = True

    member: int | None = None
    """Counted from 0; None is the ensemble."""

    @property
    def classifier(self) -> str:
        return ENSEMBLE if self.member is None else member_name(self.member)

    @property
    def parameters(self) -> str:
        return f"classifier={self.classifier}"

    @property
    def title(self) -> str:
        return f"clean accuracy of {'the ensemble' if self.member is None else f'member {self.member + 1}'}"

    @property
    def extras(self) -> tuple[Any, ...]:
        return (self.classifier,)

    def written(self) -> Written:
        return written_none({"classifier": self.classifier}, "clean")

    @classmethod
    def read(cls, written: Written) -> Clean:
        name = str(written.settings["classifier"])
        return cls(None if name == ENSEMBLE else member_number(name))

    def batch(self, subject: Subject, span: Span, seed: int) -> pd.DataFrame:
        from benchmark.harness.prepared import predicted as classes_of

        labels = subject.labels[span.rows]
        predicted, right = subject.clean[span.rows], subject.p_clean[span.rows]
        if self.member is not None:
            predicted = classes_of(subject.logits[self.member, span.rows])
            right = (predicted == labels).astype(float)
        values = {"label": labels, "clean_prediction": predicted, "correct": predicted == labels}
        return self.records.frame(span, {**values, "p_clean": right, "p_correct": right, "batch_size": span.size})


@dataclass(frozen=True)
class CleanSection(Section):
    """``{ spec = "none" }`` among the attacks of a preset."""

    key: ClassVar[str] = "none"
    title: ClassVar[str] = "clean"

    amount: Amount = EVERYTHING

    @classmethod
    def read(cls, table: PresetTable) -> CleanSection:
        table.only("spec", *Amount.keys)
        return cls(Amount.read(table))

    def narrow(self, choice: Choice) -> Section | None:
        return self if not choice.attacks or self.key in choice.attacks else None

    def plan(self, setting: Setting) -> Iterator[Planned]:
        samples = setting.images(self.amount)
        for member in (*range(setting.members), None):
            task = Clean(member)
            yield Planned(task, samples, setting.published(None, task.classifier))
