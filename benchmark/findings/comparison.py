"""Two defenses on the same images: paired differences, tests corrected for their number, and one sentence."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from benchmark.cells.cell import Cell
from benchmark.evaluations.clean import Clean
from benchmark.findings.results import Results
from benchmark.findings.rows import tabled
from benchmark.findings.statistics import SIGNIFICANT, holm, mcnemar, paired_difference

COLUMNS = (
    "dataset", "attack", "parameters", "library", "tier", "seed", "samples",
    "candidate", "reference", "difference", "ci_low", "ci_high", "p", "candidate_flags", "reference_flags",
)  # fmt: skip
"""Accuracies and differences are in percent; flags are names of checks that speak against a number; ``p_holm``
follows."""


class Comparison(NamedTuple):
    """Two defenses of a run, and what may be said of them."""

    candidate: str
    reference: str
    costs: list[str]
    table: pd.DataFrame
    sentence: str


def comparison_of(results: Results) -> Comparison | None:
    """What a run that compares has found; None for other runs."""
    if not results.compared:
        return None
    candidate, reference = results.compared["candidate"], results.compared["reference"]
    table = compare(results, candidate, reference)
    return Comparison(candidate, reference, results.compared["costs"], table, verdict(table, candidate, reference))


def compare(results: Results, candidate: str, reference: str) -> pd.DataFrame:
    """A row per attack and tier that both have: candidate minus reference, in points."""
    cells = [cell for cell in tabled(results) if cell in results.records]
    pairs = [
        (one, other)
        for one in cells
        if one.ensemble.defense == candidate
        for other in cells
        if other.ensemble.defense == reference and _same_images(one, other)
    ]
    rows = []
    for one, other in pairs:
        first, second = (results.records[cell]["correct"].to_numpy() for cell in (one, other))
        difference, low, high = paired_difference(first, second)
        rows.append(
            {
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
                "p": mcnemar(first, second),
                "candidate_flags": ", ".join(results.diagnosis.names(one)),
                "reference_flags": ", ".join(results.diagnosis.names(other)),
            }
        )
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    attacked = under_attack(table)
    table["p_holm"] = table["p"]
    table.loc[attacked, "p_holm"] = holm(table.loc[attacked, "p"].tolist())
    return table


def _same_images(one: Cell, other: Cell) -> bool:
    return (one.line, one.images.samples) == (other.line, other.images.samples)


def under_attack(table: pd.DataFrame) -> pd.Series[bool]:
    """Rows with an attack."""
    return table["tier"] != Clean.evaluation


def verdict(table: pd.DataFrame, candidate: str, reference: str) -> str:
    """What may be said, in one plain sentence."""
    attacked = table[under_attack(table)]
    if attacked.empty:
        return f"{candidate} and {reference} share no attacked images: nothing can be said about robustness."
    better = attacked[(attacked["p_holm"] < SIGNIFICANT) & (attacked["difference"] > 0)]
    worse = attacked[(attacked["p_holm"] < SIGNIFICANT) & (attacked["difference"] < 0)]
    count = len(attacked)
    settings, were = ("attack setting", "was") if count == 1 else ("attack settings", "were")
    if attacked["seed"].nunique() > 1:
        settings = "pairs of attack setting and seed"
    scope = f"in the {count} {settings} that {were} run"
    if better.empty and worse.empty:
        doubts = _doubts(attacked, candidate, "candidate") + _doubts(attacked, reference, "reference")
        return (
            f"No significant difference between {candidate} and {reference} {scope} "
            f"(McNemar, Holm-corrected, 5 %); that is not evidence that they are equal.{doubts}"
        )
    parts = [
        f"significantly {word} {reference} in {len(rows)} of {count} {settings} "
        f"(by {_range(rows['difference'])} points)"
        for rows, word in ((better, "ahead of"), (worse, "behind"))
        if len(rows)
    ]
    doubts = _doubts(better, candidate, "candidate") + _doubts(worse, reference, "reference")
    return (
        f"{candidate} is {' and '.join(parts)}, McNemar's test with Holm's correction at 5 %; "
        f"that holds for these attacks and images, not for stronger attacks.{doubts}"
    )


def _doubts(rows: pd.DataFrame, name: str, side: str) -> str:
    """Where the higher number may be owed to an attack that failed: how often, and what was seen."""
    flagged = rows[rows[f"{side}_flags"] != ""]
    if flagged.empty:
        return ""
    flags = ", ".join(dict.fromkeys(flag for flags in flagged[f"{side}_flags"] for flag in flags.split(", ")))
    return f" Read with care: in {len(flagged)} of {len(rows)}, {name}'s number is flagged ({flags})."


def _range(differences: pd.Series[float]) -> str:
    low, high = (f"{value:.1f}" for value in (differences.abs().min(), differences.abs().max()))
    return low if low == high else f"{low} to {high}"


def clean_note(table: pd.DataFrame) -> str:
    """Clean accuracy of both, in words."""
    rows = table[~under_attack(table) & (table["parameters"] == Clean().parameters)]
    if rows.empty:
        return ""
    row = rows.iloc[0]
    sign = "differs significantly" if row["p"] < SIGNIFICANT else "does not differ significantly"
    return (
        f"Clean accuracy {row['candidate']:.1f} % against {row['reference']:.1f} % on {row['samples']} images: "
        f"it {sign} (difference {row['difference']:+.1f}, {row['ci_low']:+.1f} to {row['ci_high']:+.1f})."
    )
