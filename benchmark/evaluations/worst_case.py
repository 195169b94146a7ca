"""Tier strong: the worst case over a suite of attacks within one bound, image by image.

A fooled image leaves the suite; only survivors get the next attack, so a broken defense costs little.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmark.attacks import NamedAttack, parse_attack, recorded_class, without
from benchmark.attacks.bounds import Bound
from benchmark.attacks.definitions import AutoAttack
from benchmark.evaluations.preset_table import PresetTable
from benchmark.evaluations.task import (
    Amount,
    Choice,
    Planned,
    Section,
    Setting,
    Task,
    Written,
    member_name,
    member_number,
)
from benchmark.evaluations.whitebox import add_successes
from benchmark.harness.records import COSTS, FLAGS, NORMS, RECORDS, Column, Schema, Span
from benchmark.harness.tiers import Tier
from defenses.errors import BadInput
from defenses.registry import did_you_mean
from defenses.specs import value_text

if TYPE_CHECKING:
    from benchmark.harness.crafting import Crafted
    from benchmark.harness.subject import Subject
    from defenses.members.ensemble import Ensemble

SUITES: dict[str, tuple[str, ...]] = {
    "full": (
        "fgsm({ball})",
        "bim({ball})",
        "pgd({ball})",
        "pgd({ball},steps=50,step_size={step},restarts=5)",
        "pgd({ball},steps=50,step_size={step},restarts=5,loss=pma)",
        "pgd({ball},steps=50,step_size={step},restarts=5,loss=margin)",
        "mora({ball})",
        "pgd@native({ball},steps=50,step_size={step}) from members",
        "apgd-ce({ball})",
        "apgd-t({ball})",
        "fab-t({ball})",
        "square({ball})",
    ),
    "quick": (
        "fgsm({ball})",
        "bim({ball})",
        "pgd({ball})",
        "pgd({ball},steps=50,step_size={step},restarts=2)",
        "pgd({ball},steps=50,step_size={step},restarts=2,loss=margin)",
        "mora({ball},targets=0,steps=50)",
        "pgd@native({ball},steps=50,step_size={step}) from members",
        "apgd-ce({ball},steps=50)",
        "square({ball},queries=300)",
    ),
}
"""Attacks in the order of execution: cheap attacks, attacks that stop on fooled images, then the rest of the reference
AutoAttack; docs/tiers.md has the evidence. ``full`` is the tier; ``quick`` is a shorter suite, for data where
robustness is not the question."""
SUITES_IN_L2_AND_L1: dict[str, tuple[str, ...]] = {
    "full": (
        "pgd({ball})",
        "pgd({ball},steps=50,step_size={step},restarts=5)",
        "pgd({ball},steps=50,step_size={step},restarts=5,loss=margin)",
        "mora({ball})",
        "pgd@native({ball},steps=50,step_size={step}) from members",
        "apgd-ce({ball},restarts={restarts})",
        "apgd-t({ball},targets={targets})",
        "fab-t({ball})",
        "square({ball})",
    ),
    "quick": (
        "pgd({ball})",
        "pgd({ball},steps=50,step_size={step},restarts=2)",
        "pgd({ball},steps=50,step_size={step},restarts=2,loss=margin)",
        "mora({ball},targets=0,steps=50)",
        "pgd@native({ball},steps=50,step_size={step}) from members",
        "apgd-ce({ball},steps=50)",
        "square({ball},queries=300)",
    ),
}
"""The suites for L2 and L1, without the attacks that exist only in L∞."""
FIRST_PASS = (
    "pgd@native({ball},steps=50,step_size={step})",
    "pgd@native({ball},steps=50,step_size={step},loss=margin)",
    "mora({ball},targets=0)",
)
"""The pass in bfloat16 that ``--acceleration reduced`` puts before a suite: attacks that stop on fooled images."""
ON_RANDOMISED = ("arc({ball})",)
"""Attacks in L∞ and L2 that end a suite if the ensemble draws a member for each prediction (``combine=random``)."""
NORMS_OF_SUITES = ("linf", "l2", "l1")
"""Norms with suites."""
MANY_CLASSES = 10
"""A number of classes that is enough for every attack of the suites."""


IN_BFLOAT16 = " in bfloat16"
MEMBERS = " from members"


@dataclass(frozen=True)
class Stage:
    """One attack of the suite, on the whole ensemble or on one member, or on a copy in bfloat16."""

    named: NamedAttack
    member: int | None = None
    """Counted from 0; None is the ensemble."""
    reduced: bool = False
    """Whether its images are made in bfloat16; the ensemble judges them in float32."""

    @property
    def origin(self) -> str:
        """The source of its images, in words; empty if that is the ensemble in float32."""
        member = "" if self.member is None else f" from {member_name(self.member)}"
        return member + (IN_BFLOAT16 if self.reduced else "")

    @property
    def label(self) -> str:
        """The attack and the source of its images, for readers."""
        return self.named.label + self.origin

    @property
    def on_randomised(self) -> bool:
        """Whether the stage belongs to the suite only for randomised ensembles."""
        return f"{self.named.name}({{ball}})" in ON_RANDOMISED

    def written(self) -> str:
        """For a cell's identity: with the library and its version."""
        return f"{self.named.text}{self.origin} [{self.named.version}]"


def _lineup(stages: Iterable[Stage]) -> str:
    return ", ".join(dict.fromkeys(map(_in_lineup, stages)))


def _in_lineup(stage: Stage) -> str:
    own = stage.named.attack.parameters.split(",")
    rest = ",".join(part for part in own if part.partition("=")[0] not in ("eps", "norm", "step_size"))
    where = stage.origin if stage.member is None else MEMBERS
    return stage.named.name + (f"({rest})" if rest else "") + where


def read_stage(text: str) -> Stage:
    """The stage that a file describes."""
    match = re.fullmatch(
        r"(?P<attack>.+?)(?: from (?P<member>net\d+))?(?P<reduced> in bfloat16)? \[(?P<version>.*)\]", text
    )
    if match is None:
        raise BadInput(f"cannot read the stage {text!r} of a worst case; choose another --out")
    try:
        named = replace(parse_attack(match["attack"]), version=match["version"])
    except BadInput:  # no longer registered, or its parameters changed
        spec = re.fullmatch(r"(?P<name>[^@(]+)@?(?P<library>[^(]*)\(?(?P<parameters>[^)]*)\)?", match["attack"])
        assert spec is not None
        recorded = recorded_class(spec["name"])(spec["parameters"], ())
        named = NamedAttack(spec["name"], spec["library"], recorded, match["version"])
    return Stage(named, member_number(match["member"]) if match["member"] else None, bool(match["reduced"]))


def check_suite(suite: str) -> str:
    """The name of a suite; BadInput for an unknown name."""
    if suite not in SUITES:
        raise BadInput(f"unknown suite {suite!r}; {did_you_mean(suite, SUITES)}")
    return suite


def stages(
    suite: str, bound: Bound, members: int, classes: int, reduced: bool = False, randomised: bool = False
) -> tuple[Stage, ...]:
    """The attacks of a suite within a bound, against an ensemble with ``members`` members.

    Attacks that need more classes are left out; see `remark`. ``reduced`` puts a pass in bfloat16 before them.
    ``randomised``: the ensemble draws a member for each prediction; attacks for such ensembles follow.
    """
    check_suite(suite)
    if bound.norm not in NORMS_OF_SUITES:
        raise BadInput(f"tier strong has no suite for {bound.symbol}; it has suites for {', '.join(NORMS_OF_SUITES)}")
    found = [Stage(parse_attack(text), reduced=True) for text in _in_ball(FIRST_PASS, bound)] if reduced else []
    for text in _written(suite, bound):
        alone = text.endswith(MEMBERS)
        named = parse_attack(text.removesuffix(MEMBERS))
        if classes < named.attack.fewest_classes:
            continue
        if not alone:
            found.append(Stage(named))
        elif members > 1:
            found += [Stage(named, member) for member in range(members)]
    if randomised and bound.norm != "l1":
        found += [Stage(parse_attack(text)) for text in _in_ball(ON_RANDOMISED, bound)]
    return tuple(found)


def _written(suite: str, bound: Bound) -> Iterator[str]:
    """The attacks of a suite as specs; attacks on single members end with ``from members``."""
    if bound.norm == "linf":
        yield from _in_ball(SUITES[suite], bound)
        return
    parts = AutoAttack(bound.radius, norm="l1" if bound.norm == "l1" else "l2").parts
    as_there = {"restarts": parts["apgd-ce"].settings()["restarts"], "targets": parts["apgd-t"].settings()["targets"]}
    yield from _in_ball(SUITES_IN_L2_AND_L1[suite], bound, **as_there)


def _in_ball(templates: Iterable[str], bound: Bound, **others: int) -> Iterator[str]:
    """Attacks as specs, within a bound."""
    eps, step = value_text(bound.radius), value_text(bound.radius / 5)
    ball = f"eps={eps}" if bound.norm == "linf" else f"eps={eps},norm={bound.norm}"
    yield from (template.format(ball=ball, step=step, **others) for template in templates)


def remark(suite: str, classes: int) -> str:
    """A message about attacks of the suite that need more classes; empty if there are none."""
    bound = Bound("linf", 0.1)  # any bound: only the names count
    kept = {stage.named.name for stage in stages(suite, bound, 1, classes)}
    names = [stage.named.name for stage in stages(suite, bound, 1, MANY_CLASSES) if stage.named.name not in kept]
    return without("tier strong", names, classes)


@dataclass(frozen=True)
class WorstCase(Task):
    """A suite of attacks, each on the survivors of the attacks before it."""

    evaluation: ClassVar[str] = "strong"
    in_tables: ClassVar[bool] = True
    keeps_images: ClassVar[bool] = True
    white_box: ClassVar[bool] = True
    records: ClassVar[Schema] = RECORDS.plus(
        Column(
            "broken_at",
            "int64",
            "number of the last stage that made the image less likely right, or -1",
            -1,
        ),
        Column("broken_by", "object", "that stage in words"),
        Column("stages", "object", "per stage: forwards, backwards, seconds, whether its own member was fooled"),
    )

    limit: Bound
    suite: str
    stages: tuple[Stage, ...]

    @property
    def attacks(self) -> tuple[NamedAttack, ...]:
        return tuple(stage.named for stage in self.stages)

    @property
    def bound(self) -> Bound:
        return self.limit

    @property
    def tier(self) -> Tier:
        return "strong"

    @property
    def name(self) -> str:
        return "worst-case"

    @property
    def parameters(self) -> str:
        norm = "" if self.limit.norm == "linf" else f",norm={self.limit.norm}"
        return f"eps={value_text(self.limit.radius)}{norm}" + ("" if self.suite == "full" else f",suite={self.suite}")

    @property
    def library(self) -> str:
        return "several"

    @property
    def extras(self) -> tuple[Any, ...]:
        return (self.suite,)

    @property
    def used(self) -> dict[str, str]:
        libraries = dict.fromkeys(f"{named.library} {named.version}" for named in self.attacks)
        # only some ensembles have the other stages: a single network has no members, and few ensembles are randomised
        shared = [stage for stage in self.stages if stage.member is None and not stage.on_randomised]
        return {"libraries": ", ".join(libraries), "attacks": _lineup(shared)}

    @property
    def lineup(self) -> str:
        """Its attacks in order, without the bound; suites change, but a cell keeps the attacks that it ran."""
        return _lineup(self.stages)

    def gradients(self, scalars: int, classes: int, members: int) -> float:
        parts = ((stage.named.gradients(scalars, classes), stage.member) for stage in self.stages)
        return sum(gradients / (1 if member is None else members) for gradients, member in parts)

    def written(self) -> Written:
        settings: dict[str, Any] = {"eps": self.limit.radius, "suite": self.suite}
        if self.limit.norm != "linf":
            settings["norm"] = self.limit.norm
        settings["stages"] = [stage.written() for stage in self.stages]
        return Written(self.name, self.parameters, self.library, "", settings, "strong", str(self.limit))

    @classmethod
    def read(cls, written: Written) -> WorstCase:
        settings = written.settings
        bound = Bound(settings.get("norm", "linf"), float(settings["eps"]))
        return cls(bound, settings["suite"], tuple(map(read_stage, settings["stages"])))

    def batch(self, subject: Subject, span: Span, seed: int) -> pd.DataFrame:
        """Run the suite on the correctly classified images; fooled images leave.

        For a randomised ensemble, the lowest probability of a correct prediction over the stages counts, and an image
        leaves when it is 0. For a model with random output, new draws judge the images that were chosen in this way.
        """
        from benchmark.harness.crafting import expected_answers, judged_afresh
        from benchmark.harness.prepared import predict
        from benchmark.harness.prepared import predicted as classes_of

        clean, labels, images = subject.clean[span.rows], subject.labels[span.rows], subject.images[span.rows]
        right = subject.p_clean[span.rows].copy()
        attacked = right > 0
        survivors = np.flatnonzero(attacked)
        prediction = clean.copy()
        found: dict[str, Any] = {name: np.zeros(span.size, dtype=bool) for name in (*FLAGS, "undefined")}
        found["unmoved"] = attacked.copy()  # until an attack moves the image
        found |= {name: np.zeros(span.size) for name in NORMS}
        broken_at = np.full(span.size, -1)
        log: list[list[dict[str, Any]]] = [[] for _ in range(span.size)]
        worst = images.clone()
        for number, stage in enumerate(self.stages):
            if not len(survivors):
                break
            subject.report(f"{stage.label} on {len(survivors)} images")
            crafted = _craft(subject, stage, images[survivors], labels[survivors], span.first, seed, survivors)
            output, after = expected_answers(subject, crafted.images, labels[survivors], span.size)
            predicted, fooled = classes_of(output), after < right[survivors]
            own = None
            if stage.member is not None:
                own = predict(subject.ensemble.member(stage.member), crafted.images, span.size) != labels[survivors]
            cost = {name: getattr(crafted, name) / len(survivors) for name in COSTS}
            for place, row in enumerate(survivors):
                log[row].append({"stage": number, **cost, "source_fooled": None if own is None else bool(own[place])})
            _note(found, crafted, survivors, fooled)
            prediction[survivors[fooled]] = predicted[fooled]
            broken_at[survivors[fooled]] = number
            right[survivors[fooled]] = after[fooled]
            worst[survivors[fooled]] = crafted.images[fooled]
            survivors = survivors[right[survivors] > 0]
        if subject.draws > 1:
            prediction, right = judged_afresh(subject, worst, labels, span.first)
        names = np.array([*(stage.label for stage in self.stages), ""], dtype=object)
        values = {
            "label": labels,
            "clean_prediction": clean,
            "attacked": attacked,
            "adversarial_prediction": prediction,
            "correct": prediction == labels,
            "p_clean": subject.p_clean[span.rows],
            "p_correct": right,
            **({"unstable": attacked} if subject.draws > 1 else {}),
            **found,
            **{name: [sum(part[name] for part in parts) for parts in log] for name in COSTS},
            "batch_size": span.size,
            "broken_at": broken_at,
            "broken_by": names[broken_at],
            "stages": log,
        }
        frame = self.records.frame(span, values)
        if subject.keep_images:
            add_successes(frame, {int(row): worst[row] for row in np.flatnonzero(attacked)})
        return frame


def _craft(
    subject: Subject, stage: Stage, images: Any, labels: Any, first: int, seed: int, rows: NDArray[np.int64]
) -> Crafted:
    from benchmark.harness.crafting import craft

    copy = subject.short if stage.reduced else subject.fast
    model = copy if stage.member is None else cast("Ensemble", copy).member(stage.member)
    return craft(model, stage.named, images, labels, first, seed, rows=rows, report=subject.report)


def _note(found: dict[str, Any], crafted: Crafted, survivors: NDArray[np.int64], fooled: NDArray[np.bool_]) -> None:
    """Update the findings of a stage: flags of all survivors, and norms of the images that it fooled."""
    found["unmoved"][survivors] &= crafted.found["unmoved"]
    for name in ("not_finite", "out_of_box", "out_of_ball", "zero_gradient", "undefined"):
        found[name][survivors] |= crafted.found[name]
    for name in NORMS:
        found[name][survivors[fooled]] = crafted.found[name][fooled]


def long_stages(records: pd.DataFrame) -> pd.DataFrame:
    """The column ``stages`` as a long table: one row per image and stage that attacked it, with the image's index."""
    rows = [
        {"index": index, **part}
        for index, parts in zip(records["index"], records["stages"], strict=True)
        for part in parts
    ]
    return pd.DataFrame(rows, columns=["index", "stage", *COSTS, "source_fooled"])


def from_wide(records: pd.DataFrame) -> pd.DataFrame:
    """Convert records of the first version, with a column per stage and number, to the column ``stages``."""
    wide = [name for name in records.columns if re.match(r"stage\d\d_", str(name))]
    if not wide:
        return records
    count = 1 + max(int(name[5:7]) for name in wide)
    met = np.where(records["broken_at"] < 0, count, records["broken_at"] + 1)
    met = np.where(records["attacked"], met, 0)
    columns = {name: records[name].to_numpy() for name in wide}
    log: list[list[dict[str, Any]]] = []
    for row, stages_met in enumerate(met):
        parts = []
        for number in range(int(stages_met)):
            prefix = f"stage{number:02d}_"
            own = columns.get(f"{prefix}source_fooled")
            costs = {name: float(columns[f"{prefix}{name}"][row]) for name in COSTS}
            parts.append({"stage": number, **costs, "source_fooled": None if own is None else bool(own[row])})
        log.append(parts)
    return records.drop(columns=wide).assign(stages=pd.Series(log, index=records.index, dtype=object))


# --- how a preset asks for it ---


USUAL = Amount(samples=200)
"""The default for a preset."""


@dataclass(frozen=True)
class WorstCaseSection(Section):
    """``[grid.strong]``, which is planned if the grid's tiers include ``strong``."""

    key: ClassVar[str] = "strong"
    title: ClassVar[str] = "strong"
    compared: ClassVar[bool] = True

    amount: Amount = USUAL
    suite: str = "full"

    @property
    def amounts(self) -> tuple[tuple[str, Amount], ...]:
        return ((self.title, self.amount),)

    @classmethod
    def read(cls, table: PresetTable) -> WorstCaseSection:
        table.only("suite", *Amount.keys)
        with table.naming("suite"):
            suite = check_suite(table.text("suite", "full"))
        return cls(Amount.read(table, USUAL.samples), suite)

    def narrow(self, choice: Choice) -> Section | None:
        return self

    def plan(self, setting: Setting) -> Iterator[Planned]:
        """One worst case for each bound of the rows."""
        if "strong" in setting.tiers:
            for bound in bounds_of(setting.rows):
                found = stages(self.suite, bound, setting.members, setting.classes, setting.reduced, setting.randomised)
                task = WorstCase(bound, self.suite, found)
                yield Planned(task, setting.images(self.amount))


def bounds_of(attacks: tuple[NamedAttack, ...]) -> list[Bound]:
    """The bounds of tier strong: the bounds of the attacks, in norms with a suite."""
    bounds = dict.fromkeys(named.bound for named in attacks if named.bound is not None)
    return [bound for bound in bounds if bound.norm in NORMS_OF_SUITES]
