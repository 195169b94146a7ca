"""table.md: the paper's layout, attacks down and defenses across."""

from __future__ import annotations

from collections.abc import Sequence

from benchmark.evaluations.clean import Clean
from benchmark.findings.layout import Layout
from benchmark.findings.statistics import SIGNIFICANT
from benchmark.reports import escaping

FLAGGED = "†"


def markdown(layout: Layout, title: str, notes: list[str]) -> str:
    """The whole file."""
    words = [
        "Accuracy in percent, the published number in parentheses. Bold: ahead of every other defense on the same",
        f"images, each lead significant (McNemar, {SIGNIFICANT:.0%}). Intervals and costs are in table.csv.",
    ]
    if layout.seeds > 1:
        words += [
            "±: mean and standard deviation over seeds (of the attack alone, where the model is from outside); a lead"
        ]
        words += ["counts where it is significant for each seed."]
    if layout.flagged(layout.all):
        words += [f"{FLAGGED}: a check speaks against the number, see below the tables."]
    if not layout.cells:
        words = ["Nothing here has rows in a table: the figures are in report.html and in figures/."]
    lines = [f"# {escaping.markdown(title)}", "", *words, ""]
    for dataset in layout.datasets:
        defenses = layout.defenses(dataset)
        for tier in layout.groups(dataset):
            lines += [f"## {escaping.markdown(f'{dataset}, {tier_title(tier)}')}", "", *_head(defenses)]
            for attack in layout.attacks(dataset, tier):
                best = layout.best(dataset, attack, tier)
                fields = [*map(escaping.markdown, attack)]
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


def _quirks(layout: Layout, dataset: str) -> list[str]:
    """How much of each number is owed to the paper's way of attacking: paper minus strict, in points."""
    if not {"paper", "strict"} <= set(layout.groups(dataset)):
        return []
    defenses = layout.defenses(dataset)
    lines = [
        f"## {escaping.markdown(dataset)}, what the paper's quirks are worth",
        "",
        "Tier paper minus tier strict, in points: above zero, the paper's way of attacking leaves the higher number.",
        "",
        *_head(defenses),
    ]
    rows = []
    for attack in layout.attacks(dataset, "paper"):
        gaps = [layout.quirk(dataset, attack, defense) for defense in defenses]
        if any(gap is not None for gap in gaps):
            shown = ["–" if gap is None else f"{gap:+.1f}" for gap in gaps]
            rows.append(line([*map(escaping.markdown, attack), *shown]))
    return [*lines, *rows, ""] if rows else []


def _head(defenses: list[str]) -> list[str]:
    """The first two lines of a table."""
    titles = ["attack", "parameters", *map(escaping.markdown, defenses)]
    return [line(titles), line(["---", "---", *["---:"] * len(defenses)])]


def line(fields: Sequence[str]) -> str:
    """One line of a table."""
    return "| " + " | ".join(fields) + " |"
