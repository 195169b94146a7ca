"""comparison.csv and comparison.md of a run that compares two defenses."""

from __future__ import annotations

from pathlib import Path

from benchmark.findings.comparison import Comparison, clean_note
from benchmark.reports import escaping
from benchmark.reports.tables.markdown import line
from defenses.files import write_text


def write_comparison(folder: Path, found: Comparison) -> None:
    """Write both files."""
    candidate, reference, costs, table, sentence = found
    lines = [f"# {escaping.markdown(f'{candidate} against {reference}')}", "", escaping.markdown(sentence), ""]
    lines += ["Holm's correction is over the rows with an attack; those without one are not part of it.", ""]
    note = clean_note(table)
    if note:
        lines += [escaping.markdown(note), ""]
    lines += [f"- {escaping.markdown(cost)}" for cost in costs]
    heads = ["attack", "parameters", "tier", "seed", "images", *map(escaping.markdown, (candidate, reference))]
    heads += ["difference", "95 % interval", "p", "p, Holm", "flags"]
    lines += ["", line(heads), line(["---"] * 3 + ["---:"] * 8 + ["---"])]
    for row in table.itertuples():
        flags = {candidate: str(row.candidate_flags), reference: str(row.reference_flags)}
        doubts = "; ".join(f"{name}: {found}" for name, found in flags.items() if found)
        cells = [
            *map(escaping.markdown, (row.attack, row.parameters, row.tier)), f"{row.seed}", f"{row.samples}",
            f"{row.candidate:.1f}", f"{row.reference:.1f}", f"{row.difference:+.1f}",
            f"{row.ci_low:+.1f} to {row.ci_high:+.1f}", f"{row.p:.3g}", f"{row.p_holm:.3g}", escaping.markdown(doubts),
        ]  # fmt: skip
        lines.append(line(cells))
    write_text(folder / "comparison.csv", escaping.csv(table))
    write_text(folder / "comparison.md", "\n".join(lines) + "\n")
