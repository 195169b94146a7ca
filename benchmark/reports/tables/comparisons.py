"""comparison.csv and comparison.md of a run that compares two defenses."""

from __future__ import annotations

from pathlib import Path

from benchmark.findings.comparison import Comparison, clean_note
from defenses.files import write_text


def write_comparison(folder: Path, found: Comparison) -> None:
    """Write both files."""
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
    write_text(folder / "comparison.csv", table.to_csv(index=False, lineterminator="\n"))
    write_text(folder / "comparison.md", "\n".join(lines) + "\n")
