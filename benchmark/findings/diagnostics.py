"""Diagnostics: checks of a run's records that raise warnings about its numbers, each a named flag with advice.

A pure function of cells and their per-image records. Attacks are compared on the same images. An attack counts as ahead
only if a paired test is significant at ``ALPHA``: McNemar's exact test, or a betting test for a randomised model. A
sound evaluation raises no flag.
docs/diagnostics.md explains every flag.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from benchmark.attacks.definitions import Attack
from benchmark.cells.cell import Cell
from benchmark.evaluations.blackbox import BlackBox
from benchmark.evaluations.transfer import Transfer
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import WorstCase
from benchmark.findings import naming
from benchmark.findings.checks import CHECKS, TRAINING
from benchmark.findings.statistics import mean_interval, paired_test
from benchmark.harness.records import judged, was_right

ALPHA = 0.001
"""Significance level of every comparison: small, because a run makes hundreds; fewer than 11 images cannot reach it."""
FEW = 0.01
"""Accepted share of attacked images with a zero gradient or without a change."""
WITNESS = 0.02
"""Accepted share of images that only the query-only attack of a worst case fools."""
GREY = 0.5
"""From this eps on, an attack can turn every image into plain grey, so that no class can be recognised."""

Result = tuple[Cell, pd.DataFrame]
Checked = tuple[str, tuple[Cell, ...], str]
"""A check that was made, the cells it concerns, and the warning in words; empty if the check passed."""


@dataclass(frozen=True)
class Flag:
    """A warning, the cells that it concerns, and the observation in words."""

    name: str
    cells: tuple[Cell, ...]
    words: str

    @property
    def advice(self) -> str:
        return CHECKS[self.name].advice

    @property
    def where(self) -> str:
        first = self.cells[0]
        attacks = ", ".join(dict.fromkeys(map(_attack, self.cells)))
        task = first.task
        tier = task.group if isinstance(task, WhiteBox) else task.evaluation
        seed = f"seed {first.conditions.seed}" if first.conditions.seed else ""
        names = naming.dataset(first.images.dataset), naming.defense(first.ensemble.defense)
        parts = (*names, "training", "", seed) if self.name == TRAINING else (*names, attacks, tier, seed)
        return " · ".join(part for part in parts if part)


@dataclass(frozen=True)
class Diagnosis:
    """The flags of a set of results, and how often each check could be made on them."""

    flags: tuple[Flag, ...]
    made: dict[str, int]
    cells: int

    def words(self, cell: Cell) -> str:
        """The warnings about one cell, for a field of a table."""
        return "; ".join(f"{flag.name}: {flag.words}" for flag in self.flags if cell in flag.cells)

    def names(self, cell: Cell) -> list[str]:
        """The flags that concern one cell."""
        return list(dict.fromkeys(flag.name for flag in self.flags if cell in flag.cells))

    @property
    def summary(self) -> str:
        """The numbers of warnings, checks and cells, and the checks that were not possible, in words."""
        if not self.cells and not self.flags:
            return "no attack was run, so there is nothing to check"
        count = len(self.flags)
        found = f"{count} warning{'s' * (count != 1)}" if count else "no warnings"
        missing = [name for name in CHECKS if not self.made.get(name) and name != TRAINING]
        left = f"; not possible in this run: {', '.join(missing)}" if missing else ""
        return f"{found} from {sum(self.made.values())} checks on {self.cells} cell{'s' * (self.cells != 1)}{left}"


def diagnose(results: Iterable[Result]) -> Diagnosis:
    """Check every result with an attack by itself, and against the others on the same ensemble and seed."""
    everything = list(results)
    attacked = [(cell, records) for cell, records in everything if cell.task.attacks and len(records)]
    outcomes: list[Checked] = [*_trained(cell for cell, _ in everything)]
    for cell, records in attacked:
        outcomes += ((name, (cell,), words) for name, words in (*_alone(cell, records), *_suite(cell, records)))
    groups: dict[tuple[object, ...], list[_Seen]] = {}
    for cell, records in attacked:
        if isinstance(cell.task, (WhiteBox, WorstCase, BlackBox, Transfer)):
            facts = cell.ensemble
            ensemble = (cell.images.dataset, facts.defense, facts.spec, facts.members, facts.weights)
            groups.setdefault((*ensemble, cell.conditions.seed), []).append(_Seen(cell, _standing(records)))
    for group in groups.values():
        for compare in (_monotone, _converged, _witnessed, _strongest):
            outcomes += compare(group)
    rows: dict[object, list[Cell]] = {}
    for cell, _ in attacked:
        rows.setdefault(cell.line, []).append(cell)
    for row in rows.values():
        outcomes += _alike(row)
    flags = tuple(Flag(name, cells, words) for name, cells, words in outcomes if words)
    return Diagnosis(flags, Counter(name for name, _, _ in outcomes), len(attacked))


# --- an ensemble ---


def _trained(cells: Iterable[Cell]) -> Iterator[Checked]:
    """The warning about each ensemble's training, from its checkpoint; checkpoints of older versions have none."""
    found: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        if cell.ensemble.convergence is not None:
            found.setdefault((*cell.column, cell.ensemble.weights), []).append(cell)
    for same in found.values():
        yield TRAINING, tuple(same), same[0].ensemble.convergence or ""


# --- one cell by itself: the name of each check that applies, with words where it fails ---


def _alone(cell: Cell, records: pd.DataFrame) -> Iterator[tuple[str, str]]:
    attacked, batch_size = int(records["attacked"].sum()), cell.conditions.batch_size
    first = records["index"] // batch_size * batch_size
    planned = (cell.images.samples - first).clip(upper=batch_size)
    smaller = int((records["batch_size"] < planned).sum())
    ran = f"{smaller} images ran in batches smaller than {batch_size}"
    yield "out-of-memory", ran if smaller else ""
    nothing = int(((records["adversarial_prediction"] < 0) | (records["clean_prediction"] < 0)).sum())
    words = f"the model's output is not a number for {nothing} of {len(records)} images" if nothing else ""
    undefined = judged(records, "undefined")
    if not nothing and undefined is not None and undefined.any():
        words = f"the model's output was not a number while up to {undefined.sum()} of {attacked} images were attacked"
    yield "no-prediction", words
    if not attacked:
        return
    bound, minimises = cell.task.bound, _minimises(cell)
    count = {name: int(records[name].sum()) for name in ("unmoved", "not_finite", "out_of_ball", "out_of_box")}
    still = count["unmoved"] > FEW * attacked if bound else attacked - count["unmoved"] < FEW * attacked
    moved = f"the attack changed {attacked - count['unmoved']} of {attacked} images"
    if minimises:
        moved += ", and returns the clean image where it fails"
    yield "unmoved", moved if still else ""
    never_left = judged(records, "never_left")
    if minimises and never_left is not None:
        stuck = int((never_left & _to_be_fooled(cell, records)).sum())
        words = f"the attack never took a step on {stuck} of {attacked} images"
        yield "never-left", words if stuck > FEW * attacked else ""
    if records["backwards"].sum() > 0:
        dead = int((records["zero_gradient"] & _to_be_fooled(cell, records)).sum())
        yield "zero-gradient", f"the gradient is zero on {dead} of {attacked} images" if dead > FEW * attacked else ""
    for name, column, words in (
        ("not-finite", "not_finite", "images are not finite and count as not fooled"),
        ("out-of-ball", "out_of_ball", "images left the eps-ball and were projected back"),
        ("out-of-box", "out_of_box", "images left [0, 1] and were clipped"),
    ):
        expected = minimises and name == "out-of-ball"  # a minimum-norm attack may exceed the radius
        yield name, f"{count[column]} of {attacked} {words}" if count[column] and not expected else ""
    unstable = judged(records, "unstable")
    if unstable is not None:
        words = (
            f"two different outputs for {int(unstable.sum())} images that the model was shown twice, and the attack "
            "averages no draws: add eot=20"
        )
        averages = cell.task.attack is not None and cell.task.attack.averages
        yield "randomised-output", words if unstable.any() and not averages else ""
    wrong_way = judged(records, "wrong_way")
    if wrong_way is not None:
        wrong = wrong_way[records["attacked"] & (records["linf"] > 0)]
        words = f"{int(wrong.sum())} of {len(wrong)} changed images moved away from the attack's goal"
        yield "wrong-way", words if _ahead(wrong, ~wrong) else ""
    standing = _standing(records)
    if cell.task.tier == "paper":
        right = records["correct"]
        before = was_right(records)
        back, counted = int((right & ~before).sum()), int(right.sum())
        words = f"{back} of {counted} images counted as correct were misclassified before the attack"
        yield "predicted-label-floor", words if 2 * back >= counted and _ahead(right, right & before) else ""
    if _iterative(cell) and bound and bound.norm == "linf" and bound.radius >= GREY:
        share = float(records["label"].value_counts(normalize=True).max())
        low, _ = mean_interval(standing, confidence=1 - ALPHA)
        words = f"accuracy {_percent(standing)} at ε={bound.radius:g}, while the largest class has {100 * share:.1f} %"
        yield "not-at-chance", words if low > share else ""


def _to_be_fooled(cell: Cell, records: pd.DataFrame) -> pd.Series[bool]:
    """Images on which the attack's goal is not yet reached; on the other images, the gradient may be zero."""
    return was_right(records) | (cell.task.tier == "paper")


# --- cells of one row ---


def _alike(row: Sequence[Cell]) -> Iterator[Checked]:
    """The circumstances of each cell that differ from those of the first cell."""
    first = row[0]
    for cell in row[1:]:
        there = first.circumstances
        others = [
            f"{name} {value}, not {there[name]}" for name, value in cell.circumstances.items() if value != there[name]
        ]
        beside = naming.defense(first.ensemble.defense)
        yield "not-alike", (cell,), f"{', '.join(others)} as for {beside}" if others else ""


# --- cells of one ensemble against each other ---


@dataclass(frozen=True)
class _Seen:
    """A cell, and for each image the probability that it is correct before and after the attack: often 0 or 1."""

    cell: Cell
    standing: pd.Series[float]


def _monotone(group: Sequence[_Seen]) -> Iterator[Checked]:
    for larger in group:
        bound = larger.cell.task.bound
        if bound is None:
            continue
        kind = _at_any_strength(larger.cell)
        smaller = [
            seen
            for seen in group
            if _within(seen.cell, larger.cell) and seen.cell.task.bound != bound and _at_any_strength(seen.cell) == kind
        ]
        yield from _against("not-monotone", (larger.cell,), larger, smaller)


def _at_any_strength(cell: Cell) -> tuple[object, ...]:
    named = cell.task.attack
    return cell.task.variant(named.strength, *named.attack.scaled) if named else cell.task.variant()


def _converged(group: Sequence[_Seen]) -> Iterator[Checked]:
    for shorter in group:
        attack = _attack_of(shorter.cell)
        if attack is None:  # a suite has no variant with more steps
            continue
        apart = (*attack.work, *attack.scaled)
        kind = shorter.cell.task.variant(*apart)
        longer = [
            seen
            for seen in group
            if seen.cell.task.variant(*apart) == kind and _works_more(_attack_of(seen.cell), attack)
        ]
        yield from _against("not-converged", (shorter.cell,), shorter, longer)


def _works_more(longer: Attack | None, shorter: Attack) -> bool:
    if longer is None:
        return False
    more, less = longer.settings(), shorter.settings()
    pairs = [(more[key], less[key]) for key in shorter.work if key in less]
    return all(one >= other for one, other in pairs) and any(one > other for one, other in pairs)


def _witnessed(group: Sequence[_Seen]) -> Iterator[Checked]:
    """Compare iterative white-box attacks with weaker attacks, which must not fool more images."""
    usable = [seen for seen in group if seen.cell.task.bound and not _targeted(seen.cell)]
    inside = [seen for seen in usable if isinstance(seen.cell.task, WhiteBox)]
    outside = [seen for seen in usable if isinstance(seen.cell.task, (BlackBox, Transfer))]
    suspects: dict[tuple[object, ...], list[_Seen]] = {}
    for seen in inside:
        if _iterative(seen.cell):
            suspects.setdefault((seen.cell.task.tier, seen.cell.task.bound), []).append(seen)
    for (tier, _), tried in suspects.items():
        own = [seen for seen in inside if seen.cell.task.tier == tier]
        for name, witnesses in (
            ("single-step-wins", [seen for seen in own if _single_step(seen.cell)]),
            ("query-only-wins", [seen for seen in own if _query_only(seen.cell)]),
            ("transfer-wins", outside),
        ):
            strongest = min(tried, key=lambda seen: float(seen.standing.mean()))
            within = [seen for seen in witnesses if _within(seen.cell, strongest.cell)]
            yield from _against(name, tuple(seen.cell for seen in tried), strongest, within)


def _suite(cell: Cell, records: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """A worst case by itself: the images that only its last, query-only attack fooled, after all gradient attacks."""
    task = cell.task
    if isinstance(task, WorstCase) and task.stages and task.stages[-1].named.attack.query_only:
        fooled = int((records["broken_at"] == len(task.stages) - 1).sum())
        words = f"{fooled} of {len(records)} images withstood every gradient attack and fell to the query-only one"
        yield "query-only-wins", words if fooled > WITNESS * len(records) else ""


def _strongest(group: Sequence[_Seen]) -> Iterator[Checked]:
    """A single attack must not fool an image that the worst case counts as correct; one such image raises the flag."""
    for worst in group:
        if not isinstance(worst.cell.task, WorstCase):
            continue
        others = [seen for seen in group if seen.cell.task.attack and _within(seen.cell, worst.cell)]
        missed = [(_missed(worst.standing, seen.standing), seen.cell) for seen in others]
        if missed:
            most, cell = max(missed, key=lambda pair: pair[0])
            tier = f", tier {cell.task.group}"
            words = f"{_attack(cell)}{tier}, fools {most} of the images that the worst case counts as correct"
            yield "strong-tier-beaten", (worst.cell,), words if most else ""


def _against(name: str, cells: tuple[Cell, ...], suspect: _Seen, witnesses: Sequence[_Seen]) -> Iterator[Checked]:
    """Whether a witness fools significantly more of the common images than the suspect."""
    pairs = [(seen, *suspect.standing.align(seen.standing, join="inner")) for seen in witnesses]
    pairs = [pair for pair in pairs if len(pair[1])]
    if not pairs:
        return
    ahead = [pair for pair in pairs if _ahead(pair[1], pair[2])]
    words = ""
    if ahead:
        witness, mine, theirs = max(ahead, key=lambda pair: float(pair[1].mean() - pair[2].mean()))
        lower, higher = f"{100 * float(theirs.mean()):.1f} %", f"{100 * float(mine.mean()):.1f} %"
        images = f"on the same {len(theirs)} images"
        words = f"accuracy {lower} under {_attack(witness.cell)}, but {higher} under {_attack(suspect.cell)}, {images}"
    yield name, cells, words


def _ahead(first: pd.Series[Any], second: pd.Series[Any]) -> bool:
    return bool(first.sum() > second.sum()) and paired_test(first, second) < ALPHA


def _missed(worst: pd.Series[float], single: pd.Series[float]) -> int:
    """Images that one attack fools and the worst case does not.

    The probabilities of a correct prediction must differ by 0.5, so that random draws hardly ever count.
    """
    one, other = worst.align(single, join="inner")
    return int((one - other >= 0.5).sum())


def _standing(records: pd.DataFrame) -> pd.Series[float]:
    """For each image, the probability that it is correct without and with the attack.

    Tier paper may also count images as correct that were misclassified without the attack.
    """
    right = records[["p_correct", "p_clean"]].min(axis=1).to_numpy()
    return pd.Series(right, index=records["index"].to_numpy())


def _percent(standing: pd.Series[float]) -> str:
    return f"{100 * float(standing.mean()):.1f} % of {len(standing)} images"


# --- properties of an attack ---


def _attack_of(cell: Cell) -> Attack | None:
    return cell.task.attack.attack if cell.task.attack else None


def _minimises(cell: Cell) -> bool:
    attack = _attack_of(cell)
    return attack is not None and attack.minimises


def _single_step(cell: Cell) -> bool:
    attack = _attack_of(cell)
    return attack is not None and attack.single_step


def _query_only(cell: Cell) -> bool:
    attack = _attack_of(cell)
    return attack is not None and attack.query_only


def _targeted(cell: Cell) -> bool:
    attack = _attack_of(cell)
    return attack is not None and attack.wants_target


def _iterative(cell: Cell) -> bool:
    """True for an untargeted iterative attack within a bound that uses the model's own gradient."""
    own = cell.task.white_box and cell.task.bound is not None and not _targeted(cell)
    return own and not _single_step(cell) and not _query_only(cell)


def _within(cell: Cell, other: Cell) -> bool:
    """Whether the bound of one lies inside the bound of the other."""
    mine, theirs = cell.task.bound, other.task.bound
    return mine is not None and theirs is not None and mine.within(theirs)


def _attack(cell: Cell) -> str:
    """The attack's name for readers, with the library if it is not the usual one."""
    named = cell.task.attack
    name = cell.task.name if named is None or named.title == named.label else f"{cell.task.name}@{cell.task.library}"
    return f"{naming.attack(name, cell.task.parameters)}{cell.task.origin}"
