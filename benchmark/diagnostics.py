"""Diagnostics: what the records of a run say against its own numbers, each doubt a named flag with advice.

A pure function of cells and their per-image records. Attacks are compared on the same images, and one counts as
ahead only where McNemar's exact test says so at ``ALPHA``: an evaluation that is sound raises no flag.
docs/diagnostics.md explains every flag.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from benchmark.attacks import ATTACKS
from benchmark.cells import Cell
from benchmark.statistics import accuracy_interval, mcnemar
from defenses.errors import BadInput

ALPHA = 0.001
"""Level of every comparison: small, because a run makes hundreds, and no fewer than 11 images can reach it."""
FEW = 0.01
"""Share of the attacked images up to which a dead gradient or an unmoved image is let pass."""
WITNESS = 0.02
"""Share of the images that a worst case may owe to its query-only attack alone."""
GREY = 0.5
"""From this eps on, every image can be made plain grey, so that nothing is left to recognise."""
BUDGET = ("steps", "restarts", "queries")
"""Parameters that buy an attack more work within the same bound."""

Result = tuple[Cell, pd.DataFrame]
Outcome = tuple[str, tuple[Cell, ...], str]
"""A check that was made, the cells it concerns, and what speaks against them; nothing where all is well."""


@dataclass(frozen=True)
class Check:
    """When a flag is raised, and what to do about it."""

    rule: str
    advice: str


CHECKS = {
    "unmoved": Check(
        "more than 1 % of the attacked images come back unchanged from an L∞ attack, or more than 99 % from another",
        "Do not read this as robustness: see that the attack gets labels, not targets, and pixels in [0, 1], and that "
        "the model lets a gradient through.",
    ),
    "never-left": Check(
        "on more than 1 % of the attacked images, an attack that gives the clean image back where it fails never tried "
        "another: its first step was nothing, and so was every one after it; what was wrong before counts in tier "
        "paper only",
        "Do not read these images as robust: their gradient is too small for this constant and step, so raise c or lr "
        "until the attack takes a step, or use one that does not depend on the gradient's size.",
    ),
    "zero-gradient": Check(
        "on more than 1 % of the attacked images the first gradient is zero or not finite; what was wrong before "
        "counts in tier paper only",
        "Give attacks logits that do not saturate, and remove or approximate what stops the gradient: rounding, "
        "detach, clamp.",
    ),
    "not-finite": Check(
        "an image that came back holds NaN or infinity",
        "Look for a division by a zero gradient or an overflow in the attack; these images count as not fooled.",
    ),
    "out-of-ball": Check(
        "an image that came back lies more than 1e-6 outside its eps-ball",
        "Mend the attack's projection: the images were projected and judged again, which may understate it.",
    ),
    "out-of-box": Check(
        "an image that came back lies more than 1e-6 outside [0, 1]",
        "Mend the attack's clipping or its idea of the pixel range: the images were clipped and judged again.",
    ),
    "out-of-memory": Check(
        "images ran in batches smaller than the one asked for",
        "Run all that is to be compared with a --batch-size that fits: some attacks depend on it.",
    ),
    "not-alike": Check(
        "cells of one row ran with different batch sizes, on different devices, on copies made in different ways, or "
        "with different versions of a library",
        "Compare only numbers that were measured alike: some attacks depend on each of these, so run the row again "
        "with the same options.",
    ),
    "randomised-output": Check(
        "the model, shown the first images of a batch twice, gives two different outputs",
        "Fix the randomness in eval mode, or attack the expectation over it: one draw says little. A model whose "
        "output depends on the rest of its batch shows the same: evaluate it in a mode that does not.",
    ),
    "wrong-way": Check(
        "of the images that moved, significantly more than half moved away from the attack's goal: by its margin, the "
        "model got surer of the label",
        "See that the attack does not take the label for a target and that its sign is right; if it is sound, the "
        "model's gradient misleads it.",
    ),
    "predicted-label-floor": Check(
        "in tier paper, at least half of the images counted as right, and significantly many, were wrong before the "
        "attack",
        "Read tier strict instead: here the attack starts from the predicted label, and pushing a wrong image back "
        "to right raises the number.",
    ),
    "not-at-chance": Check(
        "under an iterative L∞ attack with eps ≥ 0.5, which can turn any image grey, significantly more images stay "
        "right than the most frequent class has",
        "Suspect the attack or a masked gradient: no classifier can be right here, so use a query-only or transfer "
        "attack.",
    ),
    "single-step-wins": Check(
        "a single-step attack with the same or a smaller eps fools significantly more images than the strongest "
        "iterative one",
        "Suspect a masked gradient, or steps too small to cross the ball: try a larger step_size and more steps.",
    ),
    "not-monotone": Check(
        "an attack fools significantly fewer images than the same attack with a smaller eps",
        "Give the larger eps more steps or a step_size in proportion, and report the worst case over the smaller ones.",
    ),
    "not-converged": Check(
        "the same attack with more steps, restarts or queries fools significantly more images",
        "Report the longer attack, and go on until more work changes nothing.",
    ),
    "query-only-wins": Check(
        "an attack that uses no gradient fools, with the same or a smaller eps, significantly more images than the "
        "strongest iterative white-box one; in a worst case, more than 2 % of the images fell to it alone",
        "Suspect a masked gradient: report the query-only number as the bound, and adapt the gradient attack to the "
        "model.",
    ),
    "transfer-wins": Check(
        "images made on another model fool, with the same or a smaller eps, significantly more often than those of "
        "the strongest iterative white-box attack",
        "Suspect a masked gradient: report the transfer number as the bound, and adapt the gradient attack to the "
        "model.",
    ),
    "strong-tier-beaten": Check(
        "a single attack with the same or a smaller eps fools an image that the worst case of tier strong counts as "
        "right",
        "Count those images as broken, and add that attack to the suite.",
    ),
}
"""Every check by the name of its flag."""


@dataclass(frozen=True)
class Flag:
    """A doubt, the cells whose numbers it concerns, and what was seen, in words."""

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
        tier = first.tier if first.evaluation == "whitebox" else first.evaluation
        seed = f"seed {first.seed}" if first.seed else ""
        return " · ".join(part for part in (first.dataset, first.defense, attacks, tier, seed) if part)


@dataclass(frozen=True)
class Diagnosis:
    """The flags of a set of results, and how often each check could be made on them."""

    flags: tuple[Flag, ...]
    made: dict[str, int]
    cells: int

    def words(self, cell: Cell) -> str:
        """What concerns one cell, for a field of a table."""
        return "; ".join(f"{flag.name}: {flag.words}" for flag in self.flags if cell in flag.cells)

    def names(self, cell: Cell) -> list[str]:
        """The flags that concern one cell."""
        return list(dict.fromkeys(flag.name for flag in self.flags if cell in flag.cells))

    @property
    def summary(self) -> str:
        """How much was looked at, so that no flag means something."""
        if not self.cells:
            return "nothing was attacked, so there is nothing to check"
        count = len(self.flags)
        found = f"{count} flag{'s' * (count != 1)}" if count else "no flags"
        missing = [name for name in CHECKS if not self.made.get(name)]
        left = f"; not possible on this run: {', '.join(missing)}" if missing else ""
        return f"{found}: {sum(self.made.values())} checks on {self.cells} cells{left}"


def diagnose(results: Iterable[Result]) -> Diagnosis:
    """Check every result with an attack by itself, and against the others on the same ensemble and seed."""
    attacked = [(cell, records) for cell, records in results if cell.attack != "none" and len(records)]
    outcomes: list[Outcome] = []
    for cell, records in attacked:
        outcomes += ((name, (cell,), words) for name, words in (*_alone(cell, records), *_suite(cell, records)))
    groups: dict[tuple[Any, ...], list[_Seen]] = {}
    for cell, records in attacked:
        if cell.evaluation in ("whitebox", "strong", "blackbox", "transfer"):
            ensemble = (cell.dataset, cell.defense, cell.spec, cell.members, cell.weights, cell.seed)
            groups.setdefault(ensemble, []).append(_Seen(cell, _standing(records)))
    for group in groups.values():
        for compare in (_monotone, _converged, _witnessed, _strongest):
            outcomes += compare(group)
    rows: dict[str, list[Cell]] = {}
    for cell, _ in attacked:
        rows.setdefault(cell.question, []).append(cell)
    for row in rows.values():
        outcomes += _alike(row)
    flags = tuple(Flag(name, cells, words) for name, cells, words in outcomes if words)
    return Diagnosis(flags, Counter(name for name, _, _ in outcomes), len(attacked))


# --- one cell by itself: the name of each check that applies, with words where it fails ---


def _alone(cell: Cell, records: pd.DataFrame) -> Iterator[tuple[str, str]]:
    attacked = int(records["attacked"].sum())
    first = records["index"] // cell.batch_size * cell.batch_size
    planned = (cell.samples - first).clip(upper=cell.batch_size)
    smaller = int((records["batch_size"] < planned).sum())
    ran = f"{smaller} images ran in batches smaller than {cell.batch_size}"
    yield "out-of-memory", ran if smaller else ""
    if not attacked:
        return
    count = {name: int(records[name].sum()) for name in ("unmoved", "not_finite", "out_of_ball", "out_of_box")}
    still = count["unmoved"] > FEW * attacked if _bounded(cell) else attacked - count["unmoved"] < FEW * attacked
    moved = f"the attack moved {attacked - count['unmoved']} of the {attacked} images it should have"
    if _minimiser(cell):
        moved += "; it gives the clean image back where it fails"
    yield "unmoved", moved if still else ""
    if _minimiser(cell) and "never_left" in records:
        stuck = int((records["never_left"].eq(True) & _to_be_fooled(cell, records)).sum())
        words = f"the attack never took a step on {stuck} of {attacked} images"
        yield "never-left", words if stuck > FEW * attacked else ""
    if records["backwards"].sum() > 0:
        dead = int((records["zero_gradient"] & _to_be_fooled(cell, records)).sum())
        yield "zero-gradient", f"the gradient vanished on {dead} of {attacked} images" if dead > FEW * attacked else ""
    for name, column, words in (
        ("not-finite", "not_finite", "images are not finite and count as not fooled"),
        ("out-of-ball", "out_of_ball", "images left the eps-ball and were projected back"),
        ("out-of-box", "out_of_box", "images left [0, 1] and were clipped"),
    ):
        yield name, f"{count[column]} of {attacked} {words}" if count[column] else ""
    if "unstable" in records:
        unstable = int(records["unstable"].eq(True).sum())
        words = f"{unstable} images got two different outputs when they were looked at twice"
        yield "randomised-output", words if unstable else ""
    if "wrong_way" in records:
        wrong = records.loc[records["attacked"] & (records["linf"] > 0), "wrong_way"].eq(True)
        words = f"{int(wrong.sum())} of the {len(wrong)} images that moved got further from the attack's goal"
        yield "wrong-way", words if _ahead(wrong, ~wrong) else ""
    standing = _standing(records)
    if cell.tier == "paper":
        right = records["correct"].astype(bool)
        before = records["clean_prediction"] == records["label"]
        back, counted = int((right & ~before).sum()), int(right.sum())
        words = f"{back} of the {counted} images counted as right were wrong before the attack"
        yield "predicted-label-floor", words if 2 * back >= counted and _ahead(right, right & before) else ""
    if _iterative(cell) and _eps(cell) >= GREY:
        share = float(records["label"].value_counts(normalize=True).max())
        low, _ = accuracy_interval(int(standing.sum()), len(standing), confidence=1 - ALPHA)
        words = f"{_percent(standing)} stay right at eps={_eps(cell):g}, the largest class has {100 * share:.1f} %"
        yield "not-at-chance", words if low > share else ""


def _to_be_fooled(cell: Cell, records: pd.DataFrame) -> pd.Series[bool]:
    """Images on which an attack has something to do: where its goal is reached already, it may have no gradient."""
    right = records["clean_prediction"] == records["label"]
    return right | (cell.tier == "paper")


# --- cells of one row ---


def _alike(row: Sequence[Cell]) -> Iterator[Outcome]:
    """What each ran with, beside the first."""
    first = row[0]
    for cell in row[1:]:
        there = first.conditions
        others = [
            f"{name} {value}, not {there[name]}" for name, value in cell.conditions.items() if value != there[name]
        ]
        yield "not-alike", (cell,), f"{'; '.join(others)} as for {first.defense}" if others else ""


# --- cells of one ensemble against each other ---


@dataclass(frozen=True)
class _Seen:
    """A cell, and for each image whether it was right before the attack and still is."""

    cell: Cell
    standing: pd.Series[bool]


def _monotone(group: Sequence[_Seen]) -> Iterator[Outcome]:
    bounded = [seen for seen in group if _bounded(seen.cell)]
    for larger in bounded:
        kind = _kind(larger.cell, "eps", "step_size")
        smaller = [
            seen
            for seen in bounded
            if _eps(seen.cell) < _eps(larger.cell) and _kind(seen.cell, "eps", "step_size") == kind
        ]
        yield from _against("not-monotone", (larger.cell,), larger, smaller)


def _converged(group: Sequence[_Seen]) -> Iterator[Outcome]:
    for shorter in group:
        kind = _kind(shorter.cell, *BUDGET, "step_size")
        longer = [
            seen
            for seen in group
            if _kind(seen.cell, *BUDGET, "step_size") == kind and _works_more(seen.cell, shorter.cell)
        ]
        yield from _against("not-converged", (shorter.cell,), shorter, longer)


def _works_more(longer: Cell, shorter: Cell) -> bool:
    pairs = [(longer.settings[key], shorter.settings[key]) for key in BUDGET if key in shorter.settings]
    return all(more >= less for more, less in pairs) and any(more > less for more, less in pairs)


def _witnessed(group: Sequence[_Seen]) -> Iterator[Outcome]:
    """Attacks that a sound iterative white-box attack must not lose to."""
    usable = [seen for seen in group if _bounded(seen.cell) and not seen.cell.settings.get("targeted")]
    inside = [seen for seen in usable if seen.cell.evaluation == "whitebox"]
    outside = [seen for seen in usable if seen.cell.evaluation in ("blackbox", "transfer")]
    suspects: dict[tuple[str, float], list[_Seen]] = {}
    for seen in inside:
        if _iterative(seen.cell):
            suspects.setdefault((seen.cell.tier, _eps(seen.cell)), []).append(seen)
    for (tier, eps), tried in suspects.items():
        own = [seen for seen in inside if seen.cell.tier == tier]
        for name, witnesses in (
            ("single-step-wins", [seen for seen in own if _single_step(seen.cell)]),
            ("query-only-wins", [seen for seen in own if _query_only(seen.cell)]),
            ("transfer-wins", outside),
        ):
            strongest = min(tried, key=lambda seen: float(seen.standing.mean()))
            within = [seen for seen in witnesses if _eps(seen.cell) <= eps]
            yield from _against(name, tuple(seen.cell for seen in tried), strongest, within)


def _suite(cell: Cell, records: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """A worst case by itself: what its last, query-only attack still found after every gradient attack had tried."""
    stages = cell.settings.get("stages", [])
    last = len(stages) - 1
    if cell.evaluation == "strong" and stages and ATTACKS.get(stages[last].partition("@")[0]).query_only:
        fooled = int((records["broken_at"] == last).sum())
        words = f"{fooled} of {len(records)} images that every gradient attack left fell to the query-only one"
        yield "query-only-wins", words if fooled > WITNESS * len(records) else ""


def _strongest(group: Sequence[_Seen]) -> Iterator[Outcome]:
    """The worst case is one by definition: a single image that a single attack fools is one too many."""
    for worst in group:
        if worst.cell.evaluation != "strong":
            continue
        others = [
            seen
            for seen in group
            if seen.cell.evaluation != "strong" and _bounded(seen.cell) and _eps(seen.cell) <= _eps(worst.cell)
        ]
        missed = [(_missed(worst.standing, seen.standing), seen.cell) for seen in others]
        if missed:
            most, cell = max(missed, key=lambda pair: pair[0])
            words = f"{_attack(cell)}, tier {cell.tier}, fools {most} of the images that the worst case counts as right"
            yield "strong-tier-beaten", (worst.cell,), words if most else ""


def _against(name: str, cells: tuple[Cell, ...], suspect: _Seen, witnesses: Sequence[_Seen]) -> Iterator[Outcome]:
    """Whether a witness fools significantly more of the images that both attacks got."""
    pairs = [(seen, *suspect.standing.align(seen.standing, join="inner")) for seen in witnesses]
    pairs = [pair for pair in pairs if len(pair[1])]
    if not pairs:
        return
    ahead = [pair for pair in pairs if _ahead(pair[1], pair[2])]
    words = ""
    if ahead:
        witness, mine, theirs = max(ahead, key=lambda pair: float(pair[1].mean() - pair[2].mean()))
        first, second = _attack(witness.cell), _attack(suspect.cell)
        words = f"{first} leaves {_percent(theirs)} right, {second} {100 * float(mine.mean()):.1f} %"
    yield name, cells, words


def _ahead(first: pd.Series[bool], second: pd.Series[bool]) -> bool:
    return bool(first.sum() > second.sum()) and mcnemar(first, second) < ALPHA


def _missed(worst: pd.Series[bool], single: pd.Series[bool]) -> int:
    one, other = worst.align(single, join="inner")
    return int((one & ~other).sum())


def _standing(records: pd.DataFrame) -> pd.Series[bool]:
    """Images that were right without the attack and are right with it; in tier paper, others may count as right."""
    right = records["correct"].to_numpy(dtype=bool) & (records["clean_prediction"] == records["label"]).to_numpy()
    return pd.Series(right, index=records["index"].to_numpy())


def _percent(standing: pd.Series[bool]) -> str:
    return f"{100 * float(standing.mean()):.1f} % of {len(standing)} images"


# --- what an attack is, from its cell ---


def _bounded(cell: Cell) -> bool:
    """An L∞ attack; JSMA calls its step eps, its bound is gamma."""
    return "eps" in cell.settings and "gamma" not in cell.settings


def _minimiser(cell: Cell) -> bool:
    """An attack on the size of the perturbation, which gives the clean image back where it fails."""
    return not _bounded(cell) and "gamma" not in cell.settings


def _eps(cell: Cell) -> float:
    return float(cell.settings["eps"])


def _single_step(cell: Cell) -> bool:
    return cell.attack == "fgsm" or cell.settings.get("steps") == 1


def _query_only(cell: Cell) -> bool:
    try:
        return ATTACKS.get(cell.attack).query_only
    except BadInput:  # a worst case, or an attack that is no longer registered
        return False


def _iterative(cell: Cell) -> bool:
    """An untargeted L∞ attack with the model's own gradient, step after step."""
    own = _bounded(cell) and cell.evaluation in ("whitebox", "strong") and not cell.settings.get("targeted")
    return own and not _single_step(cell) and not _query_only(cell)


def _kind(cell: Cell, *but: str) -> tuple[str, ...]:
    """What two cells share that are the same attack but for some parameters; a suite spells out its own."""
    settings = {key: value for key, value in cell.settings.items() if key not in (*but, "stages")}
    return cell.attack, cell.tier, cell.evaluation, json.dumps(settings, sort_keys=True)


def _attack(cell: Cell) -> str:
    source = f" from {cell.settings['source']}" if "source" in cell.settings else ""
    origin = " from a surrogate" if "surrogate" in cell.settings else source
    return f"{cell.attack_title}{origin}"
