"""comparison.csv, comparison_seeds.csv and comparison.md of a run that compares a defense with others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.findings import naming
from benchmark.findings.comparison import Comparison, clean_note
from benchmark.reports import escaping
from benchmark.reports.tables.markdown import line
from defenses.files import write_text

HOLM = "Holm's correction is over all rows with an attack, those of every reference; clean accuracy is not part of it."
ANY_TIME = (
    "Rows stopped when they were decided, so p-values for a fixed number of images do not hold for them and are left "
    "out. Their intervals of the difference hold at any time, for all rows together at the level of the run."
)
SEEDS = (
    "Over training seeds: mean ± standard deviation; the interval and p are those of a paired t-test on the "
    "differences of the seeds. In the rows of one seed, they are paired over the images."
)


def write_comparison(folder: Path, found: Comparison) -> None:
    """Write the files; comparison_seeds.csv is written only for several trainings."""
    write_text(folder / "comparison.csv", escaping.csv(found.table))
    over_seeds = folder / "comparison_seeds.csv"
    if found.seeds.empty:
        over_seeds.unlink(missing_ok=True)
    else:
        write_text(over_seeds, escaping.csv(found.seeds))
    decided = folder / "decisions.csv"
    if found.rule is None:
        decided.unlink(missing_ok=True)
    else:
        write_text(decided, escaping.csv(found.decisions))
    write_text(folder / "comparison.md", "\n".join(_lines(found)) + "\n")


def _lines(found: Comparison) -> list[str]:
    title = f"{naming.inline(found.candidate)} against {naming.listed(map(naming.inline, found.references))}"
    lines = [f"# {escaping.markdown(title)}", ""]
    for sentence in found.sentences:
        lines += [escaping.markdown(sentence), ""]
    lines += [HOLM if found.rule is None else ANY_TIME, "", *([] if found.seeds.empty else [SEEDS, ""])]
    lines += [*(f"- {escaping.markdown(cost)}" for cost in found.costs), ""]
    for reference in found.references:
        table, seeds = found.against(reference)
        if len(found.references) > 1:
            part = f"{naming.inline(found.candidate)} against {naming.inline(reference)}"
            lines += [f"## {escaping.markdown(part)}", ""]
        if note := clean_note(table, seeds):
            lines += [escaping.markdown(note), ""]
        for rows in filter(len, (seeds, table)):
            lines += [*_table(rows, found.candidate, reference, found.rule is None), ""]
        if found.rule is not None:
            lines += [*_decisions(found.decisions[found.decisions["against"] == reference], found.candidate), ""]
    return lines[:-1]


def _decisions(table: pd.DataFrame, candidate: str) -> list[str]:
    """The decision on every attack against one reference, and its number of images."""
    heads = ["attack", "parameters", "tier", "verdict", "decided after", "images run", "planned"]
    lines = [line(heads), line(["---"] * 4 + ["---:"] * 3)]
    for row in table.to_dict("records"):
        names = {"candidate leads": f"{candidate} leads", "reference leads": f"{row['against']} leads"}
        words = (row["attack"], row["parameters"], row["tier"], names.get(row["verdict"], row["verdict"]))
        after = "–" if row["verdict"] == "open" else f"{row['images']}"
        lines.append(line([*map(escaping.markdown, words), after, f"{row['run']}", f"{row['planned']}"]))
    return lines


def _table(table: pd.DataFrame, candidate: str, reference: str, fixed_size: bool) -> list[str]:
    """The rows of one reference, for each seed or over seeds."""
    count = "seeds" if "seeds" in table else "seed"
    heads = [
        "attack",
        "parameters",
        "tier",
        count,
        "images",
        *map(escaping.markdown, map(naming.defense, (candidate, reference))),
    ]
    heads += ["difference", "95 % interval" if fixed_size else "interval", "p", "p, Holm", "flags"]
    lines = [line(heads), line(["---"] * 3 + ["---:"] * 8 + ["---"])]
    for row in table.to_dict("records"):
        flags = {candidate: row["candidate_flags"], reference: row["reference_flags"]}
        doubts = "; ".join(f"{name}: {words}" for name, words in flags.items() if words)
        shown = [_number(row, side, form) for side, form in (("candidate", ""), ("reference", ""), ("difference", "+"))]
        interval = "–" if pd.isna(row["ci_low"]) else f"{row['ci_low']:+.1f} to {row['ci_high']:+.1f}"
        cells = [
            *map(escaping.markdown, (row["attack"], row["parameters"], row["tier"])), f"{row[count]}",
            f"{row['samples']}", *shown, interval, _p(row["p"]), _p(row["p_holm"]), escaping.markdown(doubts),
        ]  # fmt: skip
        lines.append(line(cells))
    return lines


def _p(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:.3g}"


def _number(row: dict[Any, Any], side: str, sign: str) -> str:
    deviation = f" ± {row[f'{side}_sd']:.1f}" if f"{side}_sd" in row else ""
    return f"{row[side]:{sign}.1f}{deviation}"
