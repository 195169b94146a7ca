"""What the committed results say about the paper's claims: writes the parts of pages that contain measured numbers.

    python results/claims.py            # writes the parts again
    python results/claims.py --check    # changes nothing; exit code 1 if a part is out of date

A part stands between `<!-- NAME: written by results/claims.py -->` and `<!-- end of NAME -->`. Every number comes from
the committed cells and checkpoints, published numbers from `benchmark/plan/published`.

Every verdict needs ensembles of recipe `reference`, of its full length or started from another ensemble, and trained
on the whole training set. Otherwise it is *not settled*, as is everything that none of these rules decides. A verdict
says "one seed" if it rests on one: another training of the same defenses may then give another one.

- A lead of one defense over another, in the rows of tier `paper` (the attacks of one table on one dataset), over all
  seeds. McNemar's test for each row, with Holm's correction within the rows of one tier and one seed. Holds:
  significantly ahead in every row. Holds in direction: significantly ahead in at least half of the rows, significantly
  behind in none. Refuted: significantly behind in more than half. A row in which the attack hardly moved the images
  (warning `unmoved`), or never took a step on more than a tenth of them, does not count.
- No cost in accuracy. Holds: every interval of the difference to the baseline lies above −1 point. Refuted: one lies
  below −1 point.
- Diverse predictions. Holds: with every seed, ADP_{2,0.5} has a higher median diversity than the baseline and label
  smoothing. Refuted: with no seed.
- Less transfer. Holds: under every attack, significantly less than in the baseline and than in label smoothing. Holds
  in direction: only less than in the baseline. Refuted: under every attack, significantly more than in the baseline.
- Detection, without `evasive`, which optimises the score. Holds: under every attack, the interval of the AUC lies above
  0.5. Refuted: under no attack.
- Robustness. Refuted: in tier `strong`, the interval of every ensemble ends below 10 %.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.ensembles.provenance import changed_settings, describe_training
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.diversity import Diversity
from benchmark.evaluations.task import member_name
from benchmark.evaluations.transfer import Transfer
from benchmark.evaluations.worst_case import WorstCase
from benchmark.findings import naming
from benchmark.findings.comparison import pairs_of
from benchmark.findings.diversities import diversity_table
from benchmark.findings.results import Results, read_results
from benchmark.findings.roc_areas import detection_table
from benchmark.findings.statistics import SIGNIFICANT, holm, paired_difference, paired_test
from benchmark.findings.suites import suite_table
from benchmark.findings.tier_gap import gap_table
from benchmark.findings.transfer_rates import fooled_both
from defenses.catalogue import parse_defense
from defenses.checkpoints import Provenance, read_provenance
from defenses.specs import value_text

HERE = Path(__file__).parent
PAGES = {"results/README.md": HERE / "README.md", "README.md": HERE.parent / "README.md"}
PAGES["docs/study-adp.md"] = HERE.parent / "docs" / "study-adp.md"
LINF = ("fgsm", "bim", "pgd", "mim")
HOLDS, IN_DIRECTION, REFUTED, NOT_SETTLED = "holds", "holds in direction", "refuted", "not settled"
NAMES = {"baseline": "baseline", "adp-2-0": "ADP_{2,0}", "adp-2-0.5": "ADP_{2,0.5}"}
CONTROL = "label-smoothing-0.6"
"""The defense without a term for diversity, with the confidence of ADP."""
NAMES[CONTROL] = "label smoothing"
BREAK = "<br>"
"""Between two lines in a field of a table."""
MARGIN = 1.0
"""Points of clean accuracy that a defense may lose and still count as costing none."""
CHANCE = 0.5
"""The AUC of a score that detects nothing."""
NEVER_LEFT = 0.1
"""A row says nothing if the attack never took a step on a larger share of the images."""
NEARLY_NOTHING = 10.0
"""Percent of robust accuracy that settle that an ensemble is not robust."""


def name_of(defense: str) -> str:
    """The name of a defense in these pages."""
    return NAMES.get(defense, naming.inline(defense))


@cache
def run(name: str) -> Results:
    """A committed run."""
    return read_results(Store(HERE / name))


@cache
def checkpoints() -> tuple[Provenance, ...]:
    """The ensembles that come with the project."""
    return tuple(read_provenance(path) for path in HERE.glob("checkpoints/*/*/ensemble.safetensors"))


def is_long(origin: Provenance) -> bool:
    """True for a training that is long enough for a verdict."""
    changed = changed_settings(origin)
    short = "train_images" in changed or ("epochs" in changed and not origin.started_from)
    return origin.recipe.get("name") == "reference" and not short


def all_long(cells: Iterable[Cell]) -> bool:
    """True if every cell is of an ensemble whose training is long enough for a verdict."""
    long = {origin.identity for origin in checkpoints() if is_long(origin)}
    return all(cell.ensemble.weights in long for cell in cells)


def with_seeds(verdict: str, seeds: Iterable[int]) -> str:
    """The verdict, with a remark if it rests on ensembles of a single seed."""
    alone = verdict != NOT_SETTLED and len(set(seeds)) == 1
    return verdict + f"{BREAK}(one seed)" * alone


def seeds_of(results: Results) -> set[int]:
    """The seeds of a run."""
    return {cell.conditions.seed for cell in results.finished}


def by_seed(seed: int, results: Results) -> str:
    """The seed, in words, where a run has several."""
    return f", seed {seed}" * (len(seeds_of(results)) > 1)


# --- leads of one defense over another ---


@dataclass(frozen=True)
class Row:
    """Two ensembles under one attack, on the same images."""

    seed: int
    difference: float
    """Points."""
    p: float
    published: float | None
    """The published difference, for tier paper."""


@dataclass(frozen=True)
class Family:
    """The rows of one claim."""

    rows: tuple[Row, ...]
    unmoved: int
    """Rows that do not count."""
    settled: bool
    """True if all trainings were long enough for a verdict."""

    @property
    def clear(self) -> list[bool]:
        """Which rows are significant after Holm's correction within the rows of their seed."""
        found = dict.fromkeys(range(len(self.rows)), False)
        for seed in {row.seed for row in self.rows}:
            places = [place for place, row in enumerate(self.rows) if row.seed == seed]
            for place, p in zip(places, holm([self.rows[place].p for place in places]), strict=True):
                found[place] = p < SIGNIFICANT
        return list(found.values())

    def count(self, sign: int) -> int:
        """The number of rows that are significantly ahead (1) or behind (-1)."""
        return sum(clear and row.difference * sign > 0 for clear, row in zip(self.clear, self.rows, strict=True))

    @property
    def verdict(self) -> str:
        ahead, behind, rows = self.count(1), self.count(-1), len(self.rows)
        if not self.settled or not rows:
            return NOT_SETTLED
        if ahead == rows:
            return HOLDS
        if 2 * behind > rows:
            return REFUTED
        return IN_DIRECTION if 2 * ahead >= rows and not behind else NOT_SETTLED

    @property
    def words(self) -> str:
        """The differences, the significant rows, and the published differences."""
        if not self.rows:
            return _not_counted(self.unmoved) if self.unmoved else "not measured"
        seeds = len({row.seed for row in self.rows})
        points = [row.difference for row in self.rows]
        published = [row.published for row in self.rows if row.published is not None]
        ahead, rows = sum(point > 0 for point in points), len(points)
        words = f"ahead in {ahead} of {rows} row{'s' * (rows > 1)}{f' of {seeds} seeds' * (seeds > 1)}"
        words += f", {_span(points)} points"
        words += f", significant: {self.count(1)} ahead, {self.count(-1)} behind"
        words += f" (published: {_span(published)})" if published else ""
        return words + f"; {_not_counted(self.unmoved)}" * bool(self.unmoved)


def _not_counted(rows: int) -> str:
    return f"not counted, because the attack hardly moved the images: {rows} row{'s' * (rows > 1)}"


def _span(values: Sequence[float]) -> str:
    low, high = signed(min(values)), signed(max(values))
    return low if low == high else f"{low} to {high}"


def signed(value: float, digits: int = 1) -> str:
    """A difference with its sign; a value that rounds to zero has none."""
    text = f"{value:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def interval(value: float, low: float, high: float) -> str:
    """A difference in points with its 95 % interval."""
    return f"{signed(value)} points ({signed(low)} to {signed(high)})"


def family(name: str, one: str, other: str, tier: str, attacks: Iterable[str]) -> Family:
    """``one`` minus ``other`` under some attacks of a tier."""
    results, rows, unmoved, settled = run(name), [], 0, True
    for first, second in pairs_of(results, one, other):
        if first.task.group != tier or first.task.name not in attacks:
            continue
        settled &= all_long((first, second))
        if not all(_moved(results, cell) for cell in (first, second)):
            unmoved += 1
            continue
        ours, theirs = (results.records[cell]["p_correct"].to_numpy() for cell in (first, second))
        published = None
        if tier == "paper" and first.published is not None and second.published is not None:
            published = first.published - second.published
        difference = 100 * paired_difference(ours, theirs)[0]
        rows.append(Row(first.conditions.seed, difference, paired_test(ours, theirs), published))
    return Family(tuple(rows), unmoved, settled)


def _moved(results: Results, cell: Cell) -> bool:
    stayed = results.records[cell]["never_left"].fillna(False).mean()  # missing for attacks that always step
    return "unmoved" not in results.diagnosis.names(cell) and stayed <= NEVER_LEFT


# --- the other verdicts ---


Interval = tuple[float, float]


def cost_verdict(intervals: Sequence[Interval]) -> str:
    """Of differences of clean accuracy to the baseline, in points."""
    if any(high < -MARGIN for _, high in intervals):
        return REFUTED
    return HOLDS if intervals and all(low > -MARGIN for low, _ in intervals) else NOT_SETTLED


def diversity_verdict(medians: Sequence[tuple[float, float]]) -> str:
    """Of ADP's median diversity and the highest of the others, for every seed."""
    higher = sum(adp > other for adp, other in medians)
    return HOLDS if medians and higher == len(medians) else NOT_SETTLED if higher else REFUTED


def transfer_verdict(intervals: Sequence[tuple[Interval, Interval]]) -> str:
    """Of the differences of transfer rates to the baseline and to the control, in points, for every attack."""
    if intervals and all(base[1] < 0 for base, _ in intervals):
        return HOLDS if all(control[1] < 0 for _, control in intervals) else IN_DIRECTION
    return REFUTED if intervals and all(base[0] > 0 for base, _ in intervals) else NOT_SETTLED


def detection_verdict(lows: Sequence[float]) -> str:
    """Of the lower ends of the intervals of the AUC, for every attack."""
    better = sum(low > CHANCE for low in lows)
    return (HOLDS if better == len(lows) else NOT_SETTLED if better else REFUTED) if lows else NOT_SETTLED


def robustness_verdict(upper: Sequence[float]) -> str:
    """Of the upper ends of the intervals in tier strong, in percent."""
    return REFUTED if upper and max(upper) < NEARLY_NOTHING else NOT_SETTLED


# --- transfer ---


@dataclass(frozen=True)
class Transferred:
    """Images that fool their source member, and those of them that fool another member too, by test image."""

    both: np.ndarray
    source: np.ndarray

    @property
    def rate(self) -> float:
        return float(self.both.sum() / self.source.sum())

    @property
    def influence(self) -> np.ndarray:
        """Each image's part in the error of the rate (linearised ratio)."""
        return (self.both - self.rate * self.source) / self.source.sum()


def _attack(cell: Cell) -> str:
    return naming.attack(cell.task.name, cell.task.parameters)


def transferred(defense: str, attack: str) -> Transferred:
    """Over all pairs of members, for one attack."""
    results = run("cifar10-transfer")
    both, source = np.zeros(()), np.zeros(())
    for cell in results.of(Transfer):
        if cell.ensemble.defense != defense or _attack(cell) != attack:
            continue
        assert isinstance(cell.task, Transfer)
        for target in range(cell.ensemble.members):
            if target != cell.task.source:
                names = member_name(cell.task.source), member_name(target)
                fooled = fooled_both(results.records[cell], *names, targeted=cell.task.targeted)
                both, source = both + fooled[0].to_numpy(float), source + fooled[1].to_numpy(float)
    return Transferred(both, source)


def transfer_difference(one: Transferred, other: Transferred) -> tuple[float, float, float]:
    """Difference of two rates on the same test images, in points, with its 95 % interval."""
    error = float(np.sqrt(((one.influence - other.influence) ** 2).sum()))
    difference = one.rate - other.rate
    return 100 * difference, 100 * (difference - 1.96 * error), 100 * (difference + 1.96 * error)


# --- the parts ---


def ensembles() -> str:
    """Every ensemble that comes with the project: its training, clean accuracy, diversity and confidence."""
    results = run("diversity")
    weights = [cell.ensemble.weights for cell in results.of(Diversity)]
    confidence = dict(zip(weights, diversity_table(results)["confidence_mean"], strict=True))
    lines = [
        "| data | defense | members | training | clean accuracy; members | median log diversity | mean confidence |",
        "| --- | --- | --- | --- | --- | ---: | ---: |",
    ]
    for one in sorted(checkpoints(), key=_place):
        scores, mean = one.scores, confidence.get(one.identity, float("nan"))
        members = ", ".join(f"{100 * value:.1f}" for value in scores["test_member_accuracy"])
        label = parse_defense(one.defense).label
        lines.append(
            f"| {naming.dataset(one.dataset)} | `{label}` | {one.members} | {describe_training(one)} | "
            f"{100 * scores['test_accuracy']:.1f} %; {members} | {_median(scores['test_led_median'])} | "
            f"{'' if np.isnan(mean) else f'{mean:.2f}'} |"
        )
    return "\n".join(lines)


def _place(one: Provenance) -> tuple[object, ...]:
    """The order of the ensembles: datasets, long trainings first, defenses, seeds."""
    order = ["baseline", "adp(alpha=2,beta=0)", "adp(alpha=2,beta=0.5)", "label-smoothing(target=0.6)"]
    number = order.index(one.defense) if one.defense in order else len(order)
    dataset = ["cifar10", "cifar100", "mnist"].index(one.dataset)
    return dataset, one.members, not is_long(one), number, one.defense, one.seed


def _median(value: float) -> str:
    return signed(value, 2).removeprefix("+")


def tiers() -> str:
    """Accuracy at ε = 0.01 in three tiers, by defense, for ensembles of seed 0."""
    table = gap_table(run("cifar10-strong"))
    rows = table[(table["eps"] == 0.01) & (table["seed"] == 0)]
    images = " or ".join(map(str, sorted(set(rows["images"]))))
    lines = [
        f"| CIFAR-10, ε = 0.01, {images} images | published | clean | `paper` | `strict` | `strong` |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for _, row in rows.iterrows():
        published = "" if pd.isna(row["published"]) else f"{row['published']:.1f}"
        values = " | ".join("" if pd.isna(row[tier]) else f"{row[tier]:.1f}" for tier in ("clean", "paper", "strict"))
        strong = f"**{row['strong']:.1f}** ({row['strong_low']:.1f}–{row['strong_high']:.1f})"
        lines.append(f"| {name_of(row['defense'])} | {published} | {values} | {strong} |")
    return "\n".join(lines)


def published() -> str:
    """Accuracy minus the published number in tier paper, by defense, over the attacks of Table 2 in L∞."""
    results = run("cifar10-whitebox")
    told: dict[str, list[float]] = {}
    cells = [cell for cell in results.finished if cell.task.group == "paper" and cell.task.name in LINF]
    for cell in cells:
        if cell.published is not None:
            accuracy = 100 * results.records[cell]["p_correct"].mean()
            told.setdefault(cell.ensemble.defense, []).append(accuracy - cell.published)
    lines = ["| CIFAR-10, ours minus published | rows | points |", "| --- | ---: | ---: |"]
    return "\n".join([*lines, *(f"| {name_of(name)} | {len(all_)} | {_span(all_)} |" for name, all_ in told.items())])


def suite() -> str:
    """Images that each attack of tier strong fooled and no earlier one did, at ε = 0.01."""
    table = suite_table(run("cifar10-strong"))
    table = table[(table["eps"] == 0.01) & (table["seed"] == 0)]
    names = list(dict.fromkeys(table["defense"]))
    attacked = table.groupby("defense")["images"].first()
    heads = [f"{name_of(name)}, {attacked[name]} images" for name in names]
    lines = [f"| attack, in this order | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(names)}"]
    for attack in dict.fromkeys(table["attack"]):
        found = table[table["attack"] == attack].set_index("defense")["fooled_first"]
        if found.sum():
            named = re.sub(r"\b(eps|step_size)=[^,)]*,?", "", attack).replace("()", "").replace(",)", ")")
            lines.append(f"| `{named}` | {' | '.join(str(found.get(name, '')) for name in names)} |")
    return "\n".join(lines)


def claims() -> str:
    """The table of claims."""
    lines = ["| claim of the paper | verdict | numbers | control |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {' | '.join(claim())} |" for claim in CLAIMS)])


Claim = tuple[str, str, str, str]


def _clean() -> Claim:
    results, numbers, intervals, settled = run("errors"), [], [], True
    for one in ("adp-2-0", "adp-2-0.5"):
        for first, second in _clean_pairs(one):
            long = all_long((first, second))
            difference, low, high = _clean_difference(first, second)
            intervals += [(low, high)] * long
            settled &= long or first.images.dataset != "cifar10"
            where = f"{naming.dataset(first.images.dataset)}, {name_of(one)}{by_seed(first.conditions.seed, results)}"
            numbers.append(f"{where}: {interval(difference, low, high)}{', short training' * (not long)}")
    control = [
        f"{name_of(CONTROL)}, CIFAR-10{by_seed(first.conditions.seed, results)}: "
        f"{interval(*_clean_difference(first, second))}"
        for first, second in _clean_pairs(CONTROL)
        if first.images.dataset == "cifar10"
    ]
    verdict = cost_verdict(intervals) if settled else NOT_SETTLED
    verdict = with_seeds(verdict, seeds_of(results))
    return (
        "ADP maintains the ensemble's accuracy, within 1 point (Table 1)",
        verdict,
        BREAK.join(numbers),
        BREAK.join(control),
    )


def _clean_pairs(defense: str) -> list[tuple[Cell, Cell]]:
    return [pair for pair in pairs_of(run("errors"), defense, "baseline") if pair[0].task == Clean()]


def _clean_difference(one: Cell, other: Cell) -> tuple[float, float, float]:
    """Difference of accuracy in points, with its interval."""
    ours, theirs = (run("errors").records[cell]["p_correct"].to_numpy() for cell in (one, other))
    difference, low, high = paired_difference(ours, theirs)
    return 100 * difference, 100 * low, 100 * high


def _diverse() -> Claim:
    table = diversity_table(run("diversity"))
    told = [
        f"{name_of(str(name))} {', '.join(map(_median, values))}"
        for name, values in table.groupby("defense", sort=False)["led_median"]
    ]
    medians = table.pivot_table(index="seed", columns="defense", values="led_median")
    pairs = list(zip(medians["adp-2-0.5"], medians[["baseline", CONTROL]].max(axis=1), strict=True))
    verdict = diversity_verdict(pairs) if all_long(run("diversity").finished) else NOT_SETTLED
    verdict = with_seeds(verdict, seeds_of(run("diversity")))
    seeds = ", one number for each seed" * (len(pairs) > 1)
    numbers = f"CIFAR-10, median log diversity{seeds}: " + "; ".join(told)
    return "the members' non-maximal predictions are diverse (Fig. 1, Fig. 4)", verdict, numbers, "in the numbers"


def _lead(
    claim: str,
    name: str,
    one: str,
    other: str,
    control: Callable[[str], str],
    attacks: Iterable[str] = LINF,
    tiers: Sequence[str] = ("paper", "strict"),
) -> Callable[[], Claim]:
    """The claim that one defense is ahead of another; the first tier decides."""

    def found() -> Claim:
        families = {tier: family(name, one, other, tier, tuple(attacks)) for tier in tiers}
        first = families[tiers[0]]
        verdict = with_seeds(first.verdict, (row.seed for row in first.rows))
        return claim, verdict, BREAK.join(f"`{tier}`: {found.words}" for tier, found in families.items()), control(name)

    return found


def _beside(one: str, other: str, attacks: Iterable[str] = LINF) -> Callable[[str], str]:
    """The control: the same rows for another pair."""

    def words(name: str) -> str:
        return f"{name_of(one)} against {name_of(other)}: {family(name, one, other, 'paper', tuple(attacks)).words}"

    return words


def _no_control(name: str) -> str:
    return "none"


def _transfers() -> Claim:
    cells = run("cifar10-transfer").of(Transfer)
    defenses = list(dict.fromkeys(cell.ensemble.defense for cell in cells))
    numbers, control, intervals = [], [], []
    for attack in dict.fromkeys(map(_attack, cells)):
        rates = {name: transferred(name, attack) for name in defenses}
        base, adp, smooth = (rates[name] for name in ("baseline", "adp-2-0.5", CONTROL))
        against = {other: transfer_difference(adp, rates[other]) for other in ("baseline", "adp-2-0", CONTROL)}
        intervals.append((against["baseline"][1:], against[CONTROL][1:]))
        told = ", ".join(f"{name_of(name)} {100 * rate.rate:.1f}" for name, rate in rates.items())
        numbers.append(f"{attack}: {told}")
        part = 100 * (base.rate - smooth.rate) / (base.rate - adp.rate)
        control.append(
            f"{attack}: ADP_{{2,0.5}} minus label smoothing {interval(*against[CONTROL])}; minus ADP_{{2,0}} "
            f"{interval(*against['adp-2-0'])}; label smoothing shows {part:.0f} % of the drop"
        )
    verdict = with_seeds(transfer_verdict(intervals), seeds_of(run("cifar10-transfer")))
    head = "share of the images that fool a member and also fool another, over all pairs, in percent"
    return (
        "adversarial images transfer less between ADP's members (Fig. 3)",
        verdict if all_long(cells) else NOT_SETTLED,
        BREAK.join([f"CIFAR-10, {head}:", *numbers]),
        BREAK.join(control),
    )


def _detects() -> Claim:
    table = detection_table(run("cifar10-detection"))
    rows = table[table["defense"] == "adp-2-0.5"]
    told = {}
    for score in ("diversity", "confidence"):
        told[score] = "; ".join(
            f"{naming.attack(str(row['attack']), str(row['parameters']))}: {row['auc_right']:.2f} "
            f"({row['auc_right_low']:.2f}–{row['auc_right_high']:.2f})"
            for _, row in rows[rows["score"] == score].iterrows()
        )
    lows = rows[(rows["score"] == "diversity") & (rows["attack"] != "evasive")]["auc_right_low"]
    verdict = with_seeds(detection_verdict(list(lows)), rows["seed"])
    return (
        "diversity detects adversarial images (ROC figure)",
        verdict if all_long(run("cifar10-detection").finished) else NOT_SETTLED,
        f"AUC of diversity, predicted label, against correctly classified clean images: {told['diversity']}",
        f"AUC of plain confidence, which needs no ensemble: {told['confidence']}",
    )


def _robust() -> Claim:
    table = gap_table(run("cifar10-strong"))
    told = []
    for eps, rows in table.groupby("eps", sort=True):
        left = ", ".join(
            f"{name_of(str(name))} {'/'.join(f'{value:.1f}' for value in values)}"
            for name, values in rows.groupby("defense", sort=False)["strong"]
        )
        images = " or ".join(map(str, sorted(set(rows["images"]))))
        most = rows["strong_high"].max()
        bound = value_text(float(str(eps)))
        told.append(f"ε = {bound} ({images} images): {left}; the upper ends of the intervals are at most {most:.1f}")
    verdict = robustness_verdict(list(table["strong_high"]))
    return (
        "the accuracy of tier `paper` is robustness (not in the paper)",
        with_seeds(verdict, table["seed"]) if all_long(run("cifar10-strong").of(WorstCase)) else NOT_SETTLED,
        BREAK.join([f"Tier `strong`, in percent{', by seed' * (table['seed'].nunique() > 1)}:", *told]),
        "in the numbers",
    )


CLAIMS: tuple[Callable[[], Claim], ...] = (
    _clean,
    _diverse,
    _lead(
        "ADP_{2,0.5} is ahead of the baseline on FGSM, BIM, PGD, MIM (Table 2, CIFAR-10)", "cifar10-whitebox",
        "adp-2-0.5", "baseline", _beside(CONTROL, "baseline"),
    ),
    _lead(
        "ADP_{2,0} is ahead of the baseline (Table 2, CIFAR-10)", "cifar10-whitebox",
        "adp-2-0", "baseline", _beside(CONTROL, "baseline"),
    ),
    _lead(
        "the diversity term helps: ADP_{2,0.5} is ahead of ADP_{2,0} (Table 2, CIFAR-10)", "cifar10-whitebox",
        "adp-2-0.5", "adp-2-0", _beside("adp-2-0.5", CONTROL),
    ),
    _lead(
        "the lead needs diversity: ADP_{2,0.5} is ahead of label smoothing with equal confidence (not in the paper)",
        "cifar10-whitebox", "adp-2-0.5", CONTROL, _beside("adp-2-0", CONTROL),
    ),
    _lead(
        "ADP_{2,0.5} is ahead on JSMA and C&W (Table 2, CIFAR-10)", "cifar10-whitebox",
        "adp-2-0.5", "baseline", _beside(CONTROL, "baseline", ("jsma", "cw")), ("jsma", "cw"),
    ),
    _lead(
        "ADP_{2,0.5} is ahead on EAD (Table 2, CIFAR-10)", "cifar10-whitebox",
        "adp-2-0.5", "baseline", _beside(CONTROL, "baseline", ("ead",)), ("ead",),
    ),
    _lead(
        "ADP_{2,0.5} is ahead on MNIST (Table 2)", "mnist-whitebox",
        "adp-2-0.5", "baseline", _beside(CONTROL, "baseline"),
    ),
    _lead(
        "ADP_{2,0.5} is ahead on 100 classes (Table 3)", "cifar100-whitebox",
        "adp-2-0.5", "baseline", _no_control,
    ),
    _lead(
        "ADP improves adversarial training, FGSM (Table 4)", "cifar10-advt",
        "advt-fgsm+adp-2-0.5", "advt-fgsm", _no_control,
    ),
    _lead(
        "ADP improves adversarial training, FGSM, under strong attacks (not in the paper)", "cifar10-advt-strong",
        "advt-fgsm+adp-2-0.5", "advt-fgsm", _no_control, ("worst-case",), ("strong",),
    ),
    _lead(
        "ADP improves adversarial training, PGD (Table 4)", "cifar10-advt",
        "advt-pgd+adp-2-0.5", "advt-pgd", _no_control,
    ),
    _lead(
        "ADP_{2,0.5} is ahead with five members (Table 5)", "cifar10-k5",
        "adp-2-0.5", "baseline", _no_control, (*LINF, "cw", "ead"),
    ),
    _transfers,
    _detects,
    _robust,
)  # fmt: skip
PARTS = {"ensembles": ensembles, "tiers": tiers, "published": published, "suite": suite, "claims": claims}


def written(text: str) -> str:
    """A page with its parts written again."""

    def again(found: re.Match[str]) -> str:
        return f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}"

    return re.sub(r"(<!-- (\w+): written by results/claims\.py -->)\n.*?(<!-- end of \2 -->)", again, text, flags=re.S)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a part is out of date")
    only_check = parser.parse_args().check
    stale = []
    for name, path in PAGES.items():
        text = path.read_text(encoding="utf-8")
        found = written(text)
        if found != text:
            stale.append(name)
            if not only_check:
                path.write_text(found, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'out of date; run python results/claims.py' if only_check else 'written'}")
    return int(only_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
