"""Two defenses on the same images: paired differences, tests corrected for their number, and one sentence."""

from __future__ import annotations

import json
import time
from typing import NamedTuple

import pandas as pd

from benchmark import datasets
from benchmark.cells import TABLED
from benchmark.diagnostics import diagnose
from benchmark.ensembles import find_or_train
from benchmark.models import predict
from benchmark.planning import Request
from benchmark.statistics import holm, mcnemar, paired_difference
from benchmark.store import Store
from benchmark.training import clock
from defenses.catalogue import parse_defense
from defenses.checkpoints import is_checkpoint
from defenses.files import write_text

SIGNIFICANT = 0.05
RECORD = "comparison.json"
COLUMNS = (
    "dataset", "attack", "parameters", "library", "tier", "seed", "samples",
    "candidate", "reference", "difference", "ci_low", "ci_high", "p", "candidate_flags", "reference_flags",
)  # fmt: skip
"""Accuracies and differences are in percent; flags are names of checks that speak against a number; ``p_holm``
follows."""


def compare(store: Store, candidate: str, reference: str) -> pd.DataFrame:
    """A row per attack and tier that both have: candidate minus reference, in points."""
    finished = {cell.key: store.read(cell) for cell in store.asked() if store.has(cell)}
    diagnosis = diagnose((cell, finished[cell.key]) for cell in store.asked() if cell.key in finished)
    cells = [cell for cell in store.asked() if cell.evaluation in TABLED and cell.key in finished]
    pairs = [
        (one, other)
        for one in cells
        if one.defense == candidate
        for other in cells
        if other.defense == reference and (one.question, one.samples) == (other.question, other.samples)
    ]
    rows = []
    for one, other in pairs:
        first, second = (finished[cell.key]["correct"].to_numpy() for cell in (one, other))
        difference, low, high = paired_difference(first, second)
        rows.append(
            {
                "dataset": one.dataset,
                "attack": one.attack,
                "parameters": one.parameters,
                "library": one.library,
                "tier": one.tier,
                "seed": one.seed,
                "samples": len(first),
                "candidate": round(100 * float(first.mean()), 4),
                "reference": round(100 * float(second.mean()), 4),
                "difference": round(100 * difference, 4),
                "ci_low": round(100 * low, 4),
                "ci_high": round(100 * high, 4),
                "p": mcnemar(first, second),
                "candidate_flags": ", ".join(diagnosis.names(one)),
                "reference_flags": ", ".join(diagnosis.names(other)),
            }
        )
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    attacked = table["attack"] != "none"
    table["p_holm"] = table["p"]
    table.loc[attacked, "p_holm"] = holm(table.loc[attacked, "p"].tolist())
    return table


def verdict(table: pd.DataFrame, candidate: str, reference: str) -> str:
    """What may be said, in one plain sentence."""
    attacked = table[table["attack"] != "none"]
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
    rows = table[(table["attack"] == "none") & (table["parameters"] == "classifier=ensemble")]
    if rows.empty:
        return ""
    row = rows.iloc[0]
    sign = "differs significantly" if row["p"] < SIGNIFICANT else "does not differ significantly"
    return (
        f"Clean accuracy {row['candidate']:.1f} % against {row['reference']:.1f} % on {row['samples']} images: "
        f"it {sign} (difference {row['difference']:+.1f}, {row['ci_low']:+.1f} to {row['ci_high']:+.1f})."
    )


def canonical(spec: str) -> str:
    """What a cell has for its spec: a defense in its canonical form, or a checkpoint as it was named."""
    return spec if is_checkpoint(spec) else parse_defense(spec).text


def label_in(store: Store, spec: str) -> str:
    """The name that a defense asked for as ``spec`` has in the tables of a run."""
    return next(cell.defense for cell in store.asked() if cell.spec == canonical(spec))


def measure_costs(request: Request, specs: list[str], labels: list[str]) -> list[str]:
    """How each was trained, and the milliseconds it takes per image, measured here and now, best of three."""
    lines: list[str] = []
    say = lines.append  # nothing is left to train by now
    grid = request.preset.grids[0]
    images = datasets.load(grid.dataset).test.images(slice(0, 200)).to(request.device)
    for spec, label in zip(specs, labels, strict=True):
        trained = find_or_train(
            spec, grid.dataset, grid.network, grid.members, grid.recipe, request.seeds[0], request.device.type, say
        )
        model = trained.ensemble.to(request.device).eval()
        times = []
        for _ in range(3):
            began = time.perf_counter()
            predict(model, images, 100)
            times.append(time.perf_counter() - began)
        seconds = trained.provenance.scores.get("train_seconds")
        spent = f"trained in {clock(seconds)}, " if seconds else ""
        lines.append(f"{label}: {trained.training}; {spent}{1000 * min(times) / len(images):.2f} ms per image here")
    return lines


def keep_record(store: Store, candidate: str, reference: str, costs: list[str]) -> None:
    """Remember what is compared; every report of the run then has the comparison."""
    record = {"candidate": candidate, "reference": reference, "costs": costs}
    write_text(store.folder / RECORD, json.dumps(record, indent=1) + "\n")


class Comparison(NamedTuple):
    """Two defenses of a run, and what may be said of them."""

    candidate: str
    reference: str
    costs: list[str]
    table: pd.DataFrame
    sentence: str


def comparison_of(store: Store) -> Comparison | None:
    """What a run that compares has found; None for other runs."""
    path = store.folder / RECORD
    if not path.is_file():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    candidate, reference = record["candidate"], record["reference"]
    table = compare(store, candidate, reference)
    return Comparison(candidate, reference, record["costs"], table, verdict(table, candidate, reference))


def write_comparison(store: Store) -> None:
    """Write comparison.csv and comparison.md of a run that compares."""
    found = comparison_of(store)
    if found is None:
        return
    candidate, reference, costs, table, sentence = found
    lines = [f"# {candidate} against {reference}", "", sentence, ""]
    lines += ["Holm's correction is over the rows with an attack; those without one are not part of it.", ""]
    note = clean_note(table)
    if note:
        lines += [note, ""]
    lines += [f"- {line}" for line in costs]
    heads = ["attack", "parameters", "tier", "seed", "images", candidate, reference]
    heads += ["difference", "95 % interval", "p", "p, Holm", "flags"]
    lines += ["", "| " + " | ".join(heads) + " |", "| " + " | ".join(["---"] * 3 + ["---:"] * 8 + ["---"]) + " |"]
    for row in table.itertuples():
        flags = {candidate: str(row.candidate_flags), reference: str(row.reference_flags)}
        doubts = "; ".join(f"{name}: {found}" for name, found in flags.items() if found)
        cells = [
            row.attack, row.parameters, row.tier, row.seed, row.samples, f"{row.candidate:.1f}",
            f"{row.reference:.1f}", f"{row.difference:+.1f}", f"{row.ci_low:+.1f} to {row.ci_high:+.1f}",
            f"{row.p:.3g}", f"{row.p_holm:.3g}", doubts,
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    write_text(store.folder / "comparison.csv", table.to_csv(index=False, lineterminator="\n"))
    write_text(store.folder / "comparison.md", "\n".join(lines) + "\n")
