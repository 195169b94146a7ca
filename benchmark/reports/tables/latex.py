"""table.tex: the paper's layout as a LaTeX table, with booktabs; it compiles without changes."""

from __future__ import annotations

import re

from benchmark.evaluations.clean import Clean
from benchmark.findings import naming
from benchmark.findings.layout import Layout
from benchmark.findings.statistics import SIGNIFICANT
from benchmark.reports import escaping
from benchmark.reports.tables.markdown import image_words, number, tier_title

FLAGGED = "†"
LONG = 24
"""If an attack's parameters have more letters, their column is a `PARAGRAPH`, which breaks lines."""
PARAGRAPH = "p{3.4cm}"
WIDE = 14
"""A defense's name with at least this number of letters is set in two lines."""
MANY = 4
"""A table with at least this number of defenses takes both columns of a page."""


def latex(layout: Layout, title: str, notes: list[str]) -> str:
    """The whole file: a table per dataset."""
    lines = ["% needs \\usepackage{booktabs}", *(f"% {escaping.latex(note)}" for note in notes)]
    for dataset in layout.datasets:
        lines += _table(layout, dataset, title)
    return "\n".join(lines) + "\n"


def _table(layout: Layout, dataset: str, title: str) -> list[str]:
    defenses = layout.defenses(dataset)
    settings = [
        naming.settings(attack[1]) for group in layout.groups(dataset) for attack in layout.attacks(dataset, group)
    ]
    long = max(map(len, settings), default=0) > LONG
    kind = "table*" if len(defenses) >= MANY else "table"
    return [
        f"\\begin{{{kind}}}[t]",
        "\\centering",
        "\\small",
        "\\setlength{\\tabcolsep}{4pt}",
        f"\\caption{{{escaping.latex(caption(layout, dataset, title))}}}",
        f"\\label{{{_label(str(layout.results.manifest['preset']), dataset)}}}",
        "\\smallskip",
        f"\\begin{{tabular}}{{l{PARAGRAPH if long else 'l'}{'r' * len(defenses)}}}",
        "\\toprule",
        " & ".join(["Attack", "Parameters", *map(_head, defenses)]) + " \\\\",
        *(line for group in layout.groups(dataset) for line in _part(layout, dataset, group, long)),
        "\\bottomrule",
        "\\end{tabular}",
        f"\\end{{{kind}}}",
    ]


def caption(layout: Layout, dataset: str, title: str) -> str:
    """The meaning of the numbers and signs, and the numbers of images and seeds."""
    name = naming.dataset(dataset)
    told = title if name.casefold() in title.casefold() else f"{title}, {name}"
    rows = layout.table[layout.table["dataset"] == dataset]
    seeds = sorted(rows["seed"].unique())
    parts = [
        f"{told}: accuracy (%)",
        image_words(rows["samples"]),
        f"seed{'s' * (len(seeds) > 1)} {naming.listed(map(str, seeds))}",
    ]
    words = [f"{', '.join(parts)}."]
    if len(seeds) > 1:
        words.append("±: standard deviation over seeds.")
    if rows["published"].notna().any():
        words.append("In parentheses: the published number.")
    if any(
        layout.best(dataset, attack, group)
        for group in layout.groups(dataset)
        for attack in layout.attacks(dataset, group)
    ):
        each = ", for each seed" if len(seeds) > 1 else ""
        words.append(
            "Bold: higher than every other defense on the same images, each difference significant "
            f"(McNemar's exact test, {100 * SIGNIFICANT:g} %{each})."
        )
    if layout.flagged([position for position, cell in enumerate(layout.cells) if cell.images.dataset == dataset]):
        words.append(f"{FLAGGED}: a check warns about this number.")
    return " ".join(words)


def _label(preset: str, dataset: str) -> str:
    """The label of the table for `\\ref`."""
    words = preset if dataset in preset else f"{preset}-{dataset}"
    return f"tab:{re.sub('[^A-Za-z0-9.]+', '-', words).strip('-')}"


def _head(defense: str) -> str:
    """The name of a defense, with its parameters below."""
    before, _, last = naming.defense(defense).rpartition(" + ")
    name, _, parameters = last.partition(", " if ", " in last or len(last) < WIDE else " ")
    lines = [escaping.latex(line) for line in (f"{before} +" if before else "", name, parameters) if line]
    if len(lines) < 2:
        return "".join(lines)
    return "\\begin{tabular}[b]{@{}r@{}}" + " \\\\ ".join(lines) + "\\end{tabular}"


def _part(layout: Layout, dataset: str, group: str, long: bool) -> list[str]:
    """The rows of one tier, below its name."""
    defenses = layout.defenses(dataset)
    heading = escaping.latex(tier_title(group).capitalize())
    lines = ["\\midrule", f"\\multicolumn{{{len(defenses) + 2}}}{{l}}{{\\textit{{{heading}}}}} \\\\"]
    previous = ""
    for attack in layout.attacks(dataset, group):
        name, settings = naming.attack(attack[0]), escaping.latex(naming.settings(attack[1]))
        shown = "" if attack[0] == previous else "" if group == Clean.evaluation else escaping.latex(name)
        line = [shown, f"\\raggedright {settings}" if long else settings]
        previous = attack[0]
        line += [_field(layout, dataset, attack, group, defense) for defense in defenses]
        lines.append(" & ".join(line) + " \\\\")
    return lines


def _field(layout: Layout, dataset: str, attack: tuple[str, str], group: str, defense: str) -> str:
    positions = layout.of(dataset, attack, group, defense)
    shown = escaping.latex(number(layout, positions))
    if layout.best(dataset, attack, group) == defense:
        shown = f"\\textbf{{{shown}}}"
    if layout.flagged(positions):
        shown += escaping.latex(FLAGGED)
    published = layout.published(positions)
    return f"{shown} ({published})" if published else shown
