"""table.md: the paper's layout, attacks down and defenses across."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from benchmark.evaluations.clean import Clean
from benchmark.findings import naming
from benchmark.findings.layout import Layout
from benchmark.findings.statistics import SIGNIFICANT
from benchmark.reports import escaping

FLAGGED = "†"


def markdown(layout: Layout, title: str, notes: list[str]) -> str:
    """The whole file."""
    lines = [f"# {escaping.markdown(title)}", "", *_legend(layout), ""]
    for dataset in layout.datasets:
        defenses = layout.defenses(dataset)
        for tier in layout.groups(dataset):
            heading = f"{naming.dataset(dataset)}, {tier_title(tier)}"
            lines += [f"## {escaping.markdown(heading)}", "", *_head(defenses)]
            for attack in layout.attacks(dataset, tier):
                best = layout.best(dataset, attack, tier)
                fields = _names(attack)
                for defense in defenses:
                    positions = layout.of(dataset, attack, tier, defense)
                    shown, published = number(layout, positions), layout.published(positions)
                    shown = f"**{shown}**" if best == defense else shown
                    shown += FLAGGED if layout.flagged(positions) else ""
                    fields.append(f"{shown} ({published})" if published else shown)
                lines.append(line(fields))
            lines.append("")
        lines += _quirks(layout, dataset)
    return "\n".join([*lines, *(f"- {escaping.markdown(note)}" for note in notes)]) + "\n"


def _legend(layout: Layout) -> list[str]:
    """The meaning of the numbers and signs in the tables, a line each."""
    if not layout.cells:
        return ["This run has no table of accuracies: its figures are in report.html and in figures/."]
    words = ["Accuracy in percent. Intervals, images and costs are in table.csv."]
    if layout.table["published"].notna().any():
        words.append("In parentheses: the published number.")
    each = " for each seed" if layout.seeds > 1 else ""
    words.append(
        "Bold: higher than every other defense on the same images, each difference significant"
        f"{each} (McNemar's exact test, {SIGNIFICANT:.0%})."
    )
    if layout.seeds > 1:
        words.append("±: standard deviation over seeds (of the attack alone, where the model is from outside).")
    if layout.flagged(layout.all):
        words.append(f"{FLAGGED}: a check warns about this number, see the list below the tables.")
    return words


def number(layout: Layout, positions: list[int]) -> str:
    """Accuracy, or mean ± spread over seeds."""
    values = layout.table["accuracy"].iloc[positions].dropna()
    if values.empty:
        return "–"
    if len(values) == 1:
        return f"{values.iloc[0]:.1f}"
    return f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"


def tier_title(group: str) -> str:
    """The heading of a part of a table."""
    return "no attack" if group == Clean.evaluation else f"tier {group}"


def image_words(samples: pd.Series[int]) -> str:
    """The number of test images of the rows, in words."""
    low, high = int(samples.min()), int(samples.max())
    return f"{high} test images" if low == high else f"{low} to {high} test images"


def _quirks(layout: Layout, dataset: str) -> list[str]:
    """Tier paper minus tier strict, in points."""
    if not {"paper", "strict"} <= set(layout.groups(dataset)):
        return []
    defenses = layout.defenses(dataset)
    lines = [
        f"## {escaping.markdown(naming.dataset(dataset))}, tier paper minus tier strict",
        "",
        "In percentage points. Above zero: the paper's attack setup reports the higher accuracy.",
        "",
        *_head(defenses),
    ]
    rows = []
    for attack in layout.attacks(dataset, "paper"):
        gaps = [layout.quirk(dataset, attack, defense) for defense in defenses]
        if any(gap is not None for gap in gaps):
            shown = ["–" if gap is None else f"{gap:+.1f}" for gap in gaps]
            rows.append(line([*_names(attack), *shown]))
    return [*lines, *rows, ""] if rows else []


def _names(attack: tuple[str, str]) -> list[str]:
    """Attack and parameters, for two fields."""
    return [escaping.markdown(naming.attack(attack[0])), escaping.markdown(naming.settings(attack[1]))]


def _head(defenses: list[str]) -> list[str]:
    """The first two lines of a table."""
    titles = ["attack", "parameters", *(escaping.markdown(naming.defense(defense)) for defense in defenses)]
    return [line(titles), line(["---", "---", *["---:"] * len(defenses)])]


def line(fields: Sequence[str]) -> str:
    """One line of a table."""
    return "| " + " | ".join(fields) + " |"
