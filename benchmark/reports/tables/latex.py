"""table.tex: the paper's layout for a paper, with booktabs."""

from __future__ import annotations

from benchmark.findings.layout import Layout
from benchmark.reports import escaping
from benchmark.reports.tables.markdown import number, tier_title

FLAGGED = "$^{\\dagger}$"


def latex(layout: Layout, title: str, notes: list[str]) -> str:
    """The whole file."""
    lines = ["% needs \\usepackage{booktabs}", *(f"% {escaping.latex(note)}" for note in notes)]
    doubts = f" {FLAGGED}: a check speaks against the number." if layout.flagged(layout.all) else ""
    for dataset in layout.datasets:
        defenses = layout.defenses(dataset)
        lines += [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{escaping.latex(f'{title}, {dataset}')}: accuracy (\\%), the published number in parentheses.",
            f"Bold: significantly ahead of every other defense on the same images.{doubts}}}",
            f"\\begin{{tabular}}{{ll{'r' * len(defenses)}}}",
            "\\toprule",
            " & ".join(["Attack", "Para.", *map(escaping.latex, defenses)]) + " \\\\",
        ]
        for tier in layout.groups(dataset):
            heading = escaping.latex(tier_title(tier).capitalize())
            lines += ["\\midrule", f"\\multicolumn{{{len(defenses) + 2}}}{{l}}{{\\textit{{{heading}}}}} \\\\"]
            previous = ""
            for attack in layout.attacks(dataset, tier):
                best = layout.best(dataset, attack, tier)
                line = ["" if attack[0] == previous else escaping.latex(attack[0].upper()), escaping.latex(attack[1])]
                previous = attack[0]
                for defense in defenses:
                    positions = layout.of(dataset, attack, tier, defense)
                    shown = number(layout, positions).replace("±", "$\\pm$").replace("–", "--")
                    shown = f"\\textbf{{{shown}}}" if best == defense else shown
                    shown += FLAGGED if layout.flagged(positions) else ""
                    published = layout.published(positions)
                    line.append(f"{shown} ({published})" if published else shown)
                lines.append(" & ".join(line) + " \\\\")
        lines += ["\\bottomrule", "\\end{tabular}", "\\end{table}"]
    return "\n".join(lines) + "\n"
