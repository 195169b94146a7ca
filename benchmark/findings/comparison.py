"""A defense against others on the same images: paired differences, tests corrected for their number, sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pandas as pd

from benchmark.cells.cell import Cell
from benchmark.evaluations.clean import Clean
from benchmark.findings import naming
from benchmark.findings.decisions import Decided, decided_words, decision_table, read_rule
from benchmark.findings.results import Results
from benchmark.findings.rows import tabled
from benchmark.findings.statistics import (
    SIGNIFICANT,
    holm,
    is_certain,
    least_significant,
    paired_difference,
    paired_t,
    paired_test,
    spread,
)

SETTING = ("against", "dataset", "attack", "parameters", "library", "tier")
"""The columns that identify a comparison: reference, dataset and attack."""
COLUMNS = (
    *SETTING, "seed", "samples", "candidate", "reference", "difference", "ci_low", "ci_high", "p", "candidate_flags",
    "reference_flags", "candidate_weights", "reference_weights",
)  # fmt: skip
"""The columns for one seed. Accuracies and differences are in percent. Flags are the names of checks that warn about a
number. Weights are the first digits of their sha256. ``p_holm`` is added at the end."""
SEED_COLUMNS = (
    *SETTING, "seeds", "samples", "candidate", "candidate_sd", "reference", "reference_sd", "difference",
    "difference_sd", "ci_low", "ci_high", "p", "seeds_ahead", "seeds_behind", "candidate_flags", "reference_flags",
    "candidate_trainings", "reference_trainings",
)  # fmt: skip
"""The columns over training seeds: means, standard deviations, the interval and the test of the mean difference, and
the number of seeds that are significantly ahead or behind by themselves. ``p_holm`` is added at the end."""


MCNEMAR = "McNemar's test"
WITH_BETTING = f"{MCNEMAR}, where a model is randomised a betting test,"
"""McNemar's test needs counts; predictions of a randomised model are correct with a probability."""


@dataclass(frozen=True)
class Comparison:
    """A defense of a run, its references, and the conclusions."""

    candidate: str
    references: tuple[str, ...]
    costs: tuple[str, ...]
    table: pd.DataFrame
    """A row per reference, attack, tier and seed."""
    seeds: pd.DataFrame
    """A row per reference, attack and tier, over training seeds; empty for a single training."""
    rule: Decided | None = None
    """The rule for early stopping, in a run that tests after every batch."""
    decisions: pd.DataFrame = field(default_factory=pd.DataFrame)
    """The decisions of that rule; empty without a rule."""
    test: str = MCNEMAR
    """The test of one training, over images."""

    def against(self, reference: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The rows of one reference: by seed, and over seeds."""
        table, seeds = (part[part["against"] == reference] for part in (self.table, self.seeds))
        return table, seeds

    @property
    def sentences(self) -> list[str]:
        """One conclusion for each reference."""
        if self.rule is not None:
            return [_decided(self.decisions, self.candidate, reference, self.rule) for reference in self.references]
        candidate = naming.inline(self.candidate)
        return [verdict(*self.against(name), candidate, naming.inline(name), self.test) for name in self.references]


def comparison_of(results: Results) -> Comparison | None:
    """The comparison of a run; None for a run without a comparison."""
    if not results.compared:
        return None
    candidate, references = results.compared["candidate"], tuple(results.compared["references"])
    costs = tuple(results.compared["costs"])
    table = compare(results, candidate, *references)
    if not results.until:
        cells = [cell for pair in pairs_of(results, candidate, *references) for cell in pair]
        certain = all(is_certain(results.records[cell]["p_correct"]) for cell in cells)
        return Comparison(
            candidate, references, costs, table, over_seeds(table), test=MCNEMAR if certain else WITH_BETTING
        )
    rule = read_rule(results.until)
    decisions = decision_table(results, pairs_of(results, candidate, *references), rule)
    table = _stopped_early(table, decisions)
    return Comparison(candidate, references, costs, table, over_seeds(table.iloc[:0]), rule, decisions)


def _stopped_early(table: pd.DataFrame, decisions: pd.DataFrame) -> pd.DataFrame:
    """The table without tests for a fixed number of images, with intervals that hold at any time."""
    attacked = under_attack(table)
    found = table.copy()
    found.loc[attacked, ["p", "p_holm"]] = math.nan
    found.loc[attacked, ["ci_low", "ci_high"]] = decisions[["ci_low", "ci_high"]].to_numpy()
    return found


def _decided(decisions: pd.DataFrame, candidate: str, reference: str, rule: Decided) -> str:
    """The decisions against one reference, with the warnings about a lead."""
    rows = decisions[decisions["against"] == reference]
    candidate, reference = naming.inline(candidate), naming.inline(reference)
    if rows.empty:
        return f"{candidate} and {reference} share no attacked images: nothing can be said about robustness."
    better, worse = (rows[rows["verdict"] == f"{side} leads"] for side in ("candidate", "reference"))
    doubts = _doubts(better, candidate, "candidate") + _doubts(worse, reference, "reference")
    return decided_words(rows, candidate, reference, rule) + doubts


def compare(results: Results, candidate: str, *references: str) -> pd.DataFrame:
    """A row per reference and common attack, tier and seed: candidate minus reference, in points."""
    rows = []
    for one, other in pairs_of(results, candidate, *references):
        first, second = (results.records[cell]["p_correct"].to_numpy() for cell in (one, other))
        difference, low, high = paired_difference(first, second)
        rows.append(
            {
                "against": other.ensemble.defense,
                "dataset": one.images.dataset,
                "attack": one.task.name,
                "parameters": one.task.parameters,
                "library": one.task.library,
                "tier": one.task.group,
                "seed": one.conditions.seed,
                "samples": len(first),
                "candidate": round(100 * float(first.mean()), 4),
                "reference": round(100 * float(second.mean()), 4),
                "difference": round(100 * difference, 4),
                "ci_low": round(100 * low, 4),
                "ci_high": round(100 * high, 4),
                "p": paired_test(first, second),
                "candidate_flags": ", ".join(results.diagnosis.names(one)),
                "reference_flags": ", ".join(results.diagnosis.names(other)),
                "candidate_weights": one.ensemble.weights[:12],
                "reference_weights": other.ensemble.weights[:12],
            }
        )
    return _corrected(pd.DataFrame(rows, columns=list(COLUMNS)))


def pairs_of(results: Results, candidate: str, *references: str) -> list[tuple[Cell, Cell]]:
    """Finished cells of the candidate and of each reference on the same images."""
    cells = [cell for cell in tabled(results) if cell in results.records]
    return [
        (one, other)
        for reference in references
        for one in cells
        if one.ensemble.defense == candidate
        for other in cells
        if other.ensemble.defense == reference and _same_images(one, other)
    ]


def over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Differences over training seeds, for every setting with several seeds; see `paired_t`.

    One of the two models can have the same weights for every seed. If both do, there are no training seeds.
    """
    rows = []
    for setting, group in table.groupby([*SETTING, "samples"], sort=False):
        trainings = {side: int(group[f"{side}_weights"].nunique()) for side in ("candidate", "reference")}
        if len(group) < 2 or max(trainings.values()) < len(group):
            continue
        means = {side: spread(group[side]) for side in ("candidate", "reference", "difference")}
        clear = group["p_holm"] < SIGNIFICANT
        rows.append(
            {
                **dict(zip([*SETTING, "samples"], setting, strict=True)),
                "seeds": len(group),
                **{side: round(found.mean, 4) for side, found in means.items()},
                **{f"{side}_sd": round(found.deviation, 4) for side, found in means.items()},
                "ci_low": round(means["difference"].low, 4),
                "ci_high": round(means["difference"].high, 4),
                "p": paired_t(group["difference"]),
                "seeds_ahead": int((clear & (group["difference"] > 0)).sum()),
                "seeds_behind": int((clear & (group["difference"] < 0)).sum()),
                **{f"{side}_flags": _joined(group[f"{side}_flags"]) for side in trainings},
                **{f"{side}_trainings": count for side, count in trainings.items()},
            }
        )
    return _corrected(pd.DataFrame(rows, columns=list(SEED_COLUMNS)))


def _corrected(table: pd.DataFrame) -> pd.DataFrame:
    """The table with Holm's correction over all attacks and references; clean accuracy is not corrected."""
    attacked = under_attack(table)
    table["p_holm"] = table["p"]
    table.loc[attacked, "p_holm"] = holm(table.loc[attacked, "p"].tolist())
    return table


def _same_images(one: Cell, other: Cell) -> bool:
    return (one.line, one.images.samples, one.images.order) == (other.line, other.images.samples, other.images.order)


def under_attack(table: pd.DataFrame) -> pd.Series[bool]:
    """Rows with an attack."""
    return table["tier"] != Clean.evaluation


def verdict(
    table: pd.DataFrame, seeds: pd.DataFrame, candidate: str, reference: str, over_images: str = MCNEMAR
) -> str:
    """The conclusion about one reference: over training seeds if there are several, else seed by seed."""
    attacked, trained = table[under_attack(table)], seeds[under_attack(seeds)]
    if attacked.empty:
        return f"{candidate} and {reference} share no attacked images: nothing can be said about robustness."
    if trained.empty:
        several = attacked["seed"].nunique() > 1
        settings = "pairs of attack setting and seed" if several else _settings(len(attacked))
        return _conclusion(attacked, candidate, reference, settings, over_images)
    count = int(trained["seeds"].max())
    test = f"a paired t-test over {count} training seeds"
    words = _conclusion(trained, candidate, reference, _settings(len(trained)), test)
    return " ".join([words, *_alone(trained, candidate, over_images), *_limits(trained, candidate, reference)])


def _settings(count: int) -> str:
    return "attack setting" if count == 1 else "attack settings"


def _conclusion(rows: pd.DataFrame, candidate: str, reference: str, settings: str, test: str) -> str:
    """The settings in which a test puts the candidate ahead or behind, in words."""
    better = rows[(rows["p_holm"] < SIGNIFICANT) & (rows["difference"] > 0)]
    worse = rows[(rows["p_holm"] < SIGNIFICANT) & (rows["difference"] < 0)]
    count = len(rows)
    if better.empty and worse.empty:
        doubts = _doubts(rows, candidate, "candidate") + _doubts(rows, reference, "reference")
        return (
            f"No significant difference between {candidate} and {reference} in the {count} {settings} that "
            f"{'was' if count == 1 else 'were'} run ({test} with Holm's correction at 5 %); "
            f"that is not evidence that they are equal.{doubts}"
        )
    parts = [
        f"significantly {word} {reference} in {len(found)} of {count} {settings} "
        f"(by {_range(found['difference'])} points)"
        for found, word in ((better, "ahead of"), (worse, "behind"))
        if len(found)
    ]
    doubts = _doubts(better, candidate, "candidate") + _doubts(worse, reference, "reference")
    return (
        f"{candidate} is {' and '.join(parts)}, {test} with Holm's correction at 5 %; "
        f"this says nothing about stronger attacks or other images.{doubts}"
    )


def _alone(rows: pd.DataFrame, candidate: str, test: str) -> list[str]:
    """The result of each training by itself, in words; its test is over images."""
    always = [
        f"{word} in {count}"
        for word in ("ahead", "behind")
        if (count := int((rows[f"seeds_{word}"] == rows["seeds"]).sum()))
    ]
    where = " and ".join(always)
    return [f"Each seed by itself ({test}, Holm's correction) has {candidate} {where} of {len(rows)}."] * bool(always)


def _limits(rows: pd.DataFrame, candidate: str, reference: str) -> list[str]:
    """The smallest difference that so few seeds can show, and the models that were not trained for each seed."""
    count = int(rows["seeds"].max())
    words = [
        f"With {count} seeds, a mean difference under {least_significant(count):.1f} times its standard deviation over "
        "seeds is never significant."
    ]
    for name, side in ((candidate, "candidate"), (reference, "reference")):
        if (rows[f"{side}_trainings"] == 1).any():
            words.append(f"{name} is one trained model for every seed.")
    return words


def _doubts(rows: pd.DataFrame, name: str, side: str) -> str:
    """The warnings about a higher accuracy, which a failed attack may explain: their number and names."""
    flagged = rows[rows[f"{side}_flags"] != ""]
    if flagged.empty:
        return ""
    flags = _joined(flagged[f"{side}_flags"])
    return f" Warnings concern {name}'s number in {len(flagged)} of {len(rows)} ({flags})."


def _joined(flags: pd.Series[str]) -> str:
    """Names of checks, once each."""
    return ", ".join(dict.fromkeys(flag for words in flags for flag in words.split(", ") if flag))


def _range(differences: pd.Series[float]) -> str:
    low, high = (f"{value:.1f}" for value in (differences.abs().min(), differences.abs().max()))
    return low if low == high else f"{low} to {high}"


def clean_note(table: pd.DataFrame, seeds: pd.DataFrame) -> str:
    """Clean accuracy of both, in words."""
    by_seed, trained = (
        part[~under_attack(part) & (part["parameters"] == Clean().parameters)] for part in (table, seeds)
    )
    if by_seed.empty:
        return ""
    row = by_seed.iloc[0] if trained.empty else trained.iloc[0]
    one, other = (_percent(row, side) for side in ("candidate", "reference"))
    where = f"{row['samples']} images" + ("" if trained.empty else f" and {row['seeds']} training seeds")
    sign = "differs significantly" if row["p"] < SIGNIFICANT else "does not differ significantly"
    interval = "" if pd.isna(row["ci_low"]) else f", {row['ci_low']:+.1f} to {row['ci_high']:+.1f}"
    difference = f"difference {row['difference']:+.1f}{interval}"
    return f"Clean accuracy {one} % against {other} % on {where}: it {sign} ({difference})."


def _percent(row: pd.Series[float], side: str) -> str:
    deviation = f" ± {row[f'{side}_sd']:.1f}" if f"{side}_sd" in row.index else ""
    return f"{row[side]:.1f}{deviation}"
