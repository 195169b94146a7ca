"""White-box robustness: the ensemble itself is attacked, by the rules of tier paper or strict (Tables 2 to 5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from benchmark.attacks import NamedAttack, parse_attack
from benchmark.evaluations.preset_table import PresetTable
from benchmark.evaluations.task import (
    Amount,
    Choice,
    Planned,
    Section,
    Setting,
    Task,
    Written,
    read_attack,
    written_attack,
)
from benchmark.harness.records import AFRESH, FLAGS, JUDGED, NORMS, PICTURES, SUCCESSES, Span
from benchmark.harness.tiers import Tier, as_strict, check_tier

if TYPE_CHECKING:
    from benchmark.harness.crafting import Crafted
    from benchmark.harness.subject import Subject

SHOWN = 5
"""Number of adversarial images of every cell that are kept for display."""
LOOKED_AT = 32
"""The displayed images are among this many first test images, whose clean pixels a run keeps once."""


@dataclass(frozen=True)
class WhiteBox(Task):
    """An attack on the ensemble."""

    evaluation: ClassVar[str] = "whitebox"
    in_tables: ClassVar[bool] = True
    keeps_images: ClassVar[bool] = True
    white_box: ClassVar[bool] = True

    named: NamedAttack
    rules: Tier
    """Tier paper or strict."""
    shared_images: bool = False
    """In tier strict, whether the cell has the same adversarial images as the cell of tier paper."""

    @property
    def attack(self) -> NamedAttack:
        return self.named

    @property
    def tier(self) -> Tier:
        return self.rules

    @property
    def title(self) -> str:
        return f"{self.attack_title} · {self.rules}"

    @property
    def paper_twin(self) -> WhiteBox | None:
        """The task of tier paper that makes the same images."""
        return WhiteBox(self.named, "paper") if self.shared_images else None

    def written(self) -> Written:
        return written_attack(self.named, {}, self.rules)._replace(shared_images=self.shared_images)

    @classmethod
    def read(cls, written: Written) -> WhiteBox:
        named, tier = read_attack(written), check_tier(written.tier)
        shared = written.shared_images
        if shared is None:  # files of the first version do not say
            shared = tier == "strict" and named.attack.same_in_tiers
        return cls(named, tier, shared)

    def batch(self, subject: Subject, span: Span, seed: int) -> pd.DataFrame:
        if self.shared_images:
            return as_strict(WhiteBox(self.named, "paper").batch(subject, span, seed))
        from benchmark.harness.crafting import craft, judge, judged_afresh, wrong_labels

        attack, paper = self.named.attack, self.rules == "paper"
        labels, clean, before = subject.labels[span.rows], subject.clean[span.rows], subject.p_clean[span.rows]
        rows = np.arange(span.size) if paper else np.flatnonzero(before > 0)
        targets = wrong_labels(labels, subject.classes, span.first, seed) if attack.wants_target else None
        prediction, right = clean.copy(), before.copy()
        found: dict[str, Any] = {name: np.zeros(span.size, dtype=bool) for name in (*FLAGS, *JUDGED)}
        found |= {name: np.zeros(span.size) for name in NORMS}
        afresh: dict[str, Any] = {}
        crafted, chosen = None, subject.images[span.rows]
        if len(rows):
            predicted_label = paper and attack.paper_labels == "predicted"
            known = np.where(clean < 0, labels, clean)  # without a prediction, the true label
            given = (targets if targets is not None else known if predicted_label else labels)[rows]
            output = attack.paper_output if paper else "log-probabilities"
            images = subject.images[span.rows][rows]
            crafted = craft(subject.fast, self.named, images, given, span.first, seed, output, rows, subject.report)
            outputs = subject.outputs[span.rows][rows]
            judged = judge(subject, outputs, crafted.images, labels[rows], given, attack.wants_target)
            # for a randomised model, keep the better of two images; without randomness, all attacked images were right
            better = np.full(len(rows), True) if paper else judged.right <= before[rows]
            crafted = crafted.kept(images, better)
            prediction[rows[better]], right[rows[better]] = judged.predictions[better], judged.right[better]
            for name, seen in (crafted.found | judged.found).items():
                found[name][rows] = seen
            if subject.draws > 1:
                if paper and attack.same_in_tiers:
                    keep = (judged.right <= before) & (before > 0)
                    strict = judged_afresh(subject, crafted.kept(images, keep).images, labels, span.first)
                    afresh = dict(zip(AFRESH, strict, strict=True))
                chosen = chosen.clone()
                chosen[rows] = crafted.images
        if subject.draws > 1:
            prediction, right = judged_afresh(subject, chosen, labels, span.first)
        values: dict[str, Any] = {
            "label": labels,
            "clean_prediction": clean,
            "attacked": np.isin(np.arange(span.size), rows),
            "adversarial_prediction": prediction,
            "correct": prediction == labels,
            "p_clean": before,
            "p_correct": right,
            **afresh,
            **found,
            **({} if targets is None else {"target": targets}),
            **(crafted.costs(span.size) if crafted else {"batch_size": span.size}),
        }
        frame = self.records.frame(span, values)
        if crafted is not None and span.first == 0:
            _add_pictures(frame, subject, rows, crafted)
        if subject.keep_images:
            add_successes(frame, {} if crafted is None else dict(zip(rows.tolist(), crafted.images, strict=True)))
        return frame


def _add_pictures(frame: pd.DataFrame, subject: Subject, rows: np.ndarray[Any, Any], crafted: Crafted) -> None:
    """Add half-precision copies of the first attacked images for display, and each member's predictions for them."""
    import torch

    from benchmark.harness.crafting import pixels
    from defenses.members.ensemble import Ensemble

    chosen = [row for row in rows[:SHOWN].tolist() if row < LOOKED_AT]
    images = crafted.images[: len(chosen)]
    columns = dict(zip(PICTURES, pixels(images, np.float16), strict=False))
    if isinstance(subject.ensemble, Ensemble):
        with torch.no_grad():
            columns["members"] = subject.ensemble.member_logits(images).argmax(-1).cpu().T.tolist()
    for name, values in columns.items():
        frame[name] = pd.Series(values, index=chosen, dtype=object).reindex(frame.index)


def add_successes(frame: pd.DataFrame, images: dict[int, Any]) -> None:
    """Add the adversarial images that fool the ensemble, as bytes of float32; other rows are None."""
    from benchmark.harness.crafting import pixels

    fooled = [row for row in np.flatnonzero(frame["attacked"] & ~frame["correct"]).tolist() if row in images]
    parts = [pixels(images[row][None], np.float32) for row in fooled]
    for place, name in enumerate(SUCCESSES):
        values = pd.Series([part[place][0] for part in parts], index=fooled, dtype=object)
        frame[name] = values.reindex(frame.index)


# --- how a preset asks for it ---


NO_ATTACK = "none"
"""The entry for clean accuracy among the attacks of a preset."""


@dataclass(frozen=True)
class Row:
    """An attack of a table, with its number of images."""

    named: NamedAttack
    amount: Amount
    tiers: tuple[Tier, ...] = ()
    """Only these tiers of the grid; all of them if empty."""


def rows_of(table: PresetTable) -> list[PresetTable]:
    """The list ``attacks`` of a grid, row by row; a text stands for a row with this spec."""
    rows = table.tables("attacks", plain="spec")
    for row in rows:
        row.only("spec", "tiers", *Amount.keys)
    return rows


def _row(item: PresetTable) -> Row:
    with item.naming("spec"):
        named = parse_attack(item.text("spec"))
    with item.naming("tiers"):
        tiers = tuple(check_tier(tier) for tier in item.texts("tiers", ()))
    return Row(named, Amount.read(item), tiers)


@dataclass(frozen=True)
class WhiteBoxSection(Section):
    """The list ``attacks`` of a preset, without its entry ``none``."""

    key: ClassVar[str] = "attacks"
    title: ClassVar[str] = "white-box"
    compared: ClassVar[bool] = True

    rows: tuple[Row, ...]

    @property
    def attacks(self) -> tuple[NamedAttack, ...]:
        return tuple(row.named for row in self.rows)

    @property
    def amounts(self) -> tuple[tuple[str, Amount], ...]:
        return tuple((row.named.name, row.amount) for row in self.rows)

    @classmethod
    def read(cls, table: PresetTable) -> WhiteBoxSection:
        return cls(tuple(_row(item) for item in rows_of(table) if item.text("spec") != NO_ATTACK))

    def narrow(self, choice: Choice) -> Section | None:
        """``fgsm`` selects the rows of that name; a full spec is kept, with that name's number of images."""
        if not choice.attacks:
            return self
        chosen: list[Row] = []
        for text in choice.attacks:
            same = [row for row in self.rows if row.named.name == text]
            if same or (text == NO_ATTACK and choice.has_clean):
                chosen += same
                continue
            named = parse_attack(text)
            relatives = [row for row in self.rows if row.named.name == named.name] or list(self.rows)
            chosen.append(Row(named, relatives[0].amount if relatives else Amount()))
        return WhiteBoxSection(tuple(dict.fromkeys(chosen))) if chosen else None

    def plan(self, setting: Setting) -> Iterator[Planned]:
        for row in self.rows:
            samples, number = setting.images(row.amount), setting.published(row.named, "")
            for tier in setting.tiers:
                if tier != "strong" and (not row.tiers or tier in row.tiers):
                    shared = tier == "strict" and row.named.attack.same_in_tiers
                    yield Planned(WhiteBox(row.named, tier, shared), samples, number)
