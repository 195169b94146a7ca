"""crosscheck.csv and crosscheck.md of a run with an attack in several libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.findings.crosscheck import COUNTS, RULES, summary
from benchmark.reports import escaping
from benchmark.reports.tables.markdown import line
from defenses.files import write_text


def write_crosscheck(folder: Path, table: pd.DataFrame) -> None:
    """Write both files, or remove them where the table is empty."""
    files = folder / "crosscheck.csv", folder / "crosscheck.md"
    if table.empty:
        for path in files:
            path.unlink(missing_ok=True)
    else:
        write_text(files[0], escaping.csv(table))
        write_text(files[1], _markdown(table))


HEADS = (
    "attack", "library", "accuracy", "same outcome", "same class", "pixel", "L2", "L∞", "unmoved", "out of box",
    "out of ball", "not finite", "zero gradient", "forwards", "backwards", "s/image", "cost", "verdict",
)  # fmt: skip


def _markdown(table: pd.DataFrame) -> str:
    lines = ["# One attack, every library", "", summary(table), ""]
    for (dataset, defense, tier, seed), rows in table.groupby(["dataset", "defense", "tier", "seed"], sort=False):
        title = f"{dataset}, {defense}, tier {tier}{f', seed {seed}' if seed else ''}"
        lines += [f"## {escaping.markdown(title)}", ""]
        lines += [line(HEADS), line(["---", "---", *["---:"] * (len(HEADS) - 3), "---"])]
        for row in rows.to_dict("records"):
            accuracy = f"{row['accuracy']:.1f} ({row['ci_low']:.1f} to {row['ci_high']:.1f})" if row["samples"] else "–"
            attack = f"{row['attack']}({row['parameters']}), {row['samples']} images"
            shown = [
                escaping.markdown(attack if row["relation"] == "default" or not row["samples"] else row["attack"]),
                escaping.markdown(row["library"]),
                accuracy,
                number(row["same_outcome"], "{:.0f} %"),
                number(row["same_class"], "{:.0f} %"),
                number(row["pixel_difference"], "{:.2g}"),
                *(number(row[name], "{:.3g}") for name in ("l2", "linf")),
                *(number(row[name], "{:.0f}") for name in COUNTS),
                *(number(row[name], "{:.1f}") for name in ("forwards", "backwards")),
                number(row["seconds"], "{:.2g}"),
                number(row["cost"], "{:.1f}"),
                escaping.markdown(row["verdict"]),
            ]
            lines.append(line(shown))
        lines.append("")
    return "\n".join([*lines, *(f"- {rule}" for rule in RULES)]) + "\n"


def number(value: Any, form: str) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None or pd.isna(value) else form.format(value)
