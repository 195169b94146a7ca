"""Security curves: accuracy against the strength of an attack, with its interval; a sound attack brings it to zero."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmark.findings import naming
from benchmark.findings.layout import Layout
from benchmark.findings.strengths import FEWEST, Curve, curves
from benchmark.reports import escaping
from benchmark.reports.figures.drawing import Figure, column_figure, legend_below, look, slug, style
from defenses import specs

FALLEN = 5.0
"""Accuracy in percent below which a curve counts as fallen."""
READ = "Points are measured; bands are 95 % intervals."


def curve_figures(layout: Layout) -> list[Figure]:
    """A figure per dataset, attack, library and tier that was run at three strengths or more."""
    return [_draw(curve) for curve in curves(layout)]


def _draw(curve: Curve) -> Figure:
    rows, parameter = _where_it_changes(curve.rows), naming.GREEK.get(curve.parameter, curve.parameter)
    dataset, attack, tier = (str(rows[key].iloc[0]) for key in ("dataset", "attack", "tier"))
    strengths = sorted(rows["strength"].unique())
    names = {defense: escaping.figure(naming.defense(defense)) for defense in rows["defense"].unique()}
    left = []
    with style():
        figure, axis = column_figure(1.7, [*names.values()])
        for position, (defense, values) in enumerate(rows.groupby("defense", sort=False)):
            line = values.groupby("strength")[["accuracy", "ci_low", "ci_high"]].mean()
            colour = look(position)["color"]
            axis.fill_between(line.index, line["ci_low"], line["ci_high"], color=colour, alpha=0.15, lw=0)
            axis.plot(line.index, line["accuracy"], marker="o", ms=3, label=names[defense], **look(position))
            if line["accuracy"].iloc[-1] > FALLEN:
                left.append(f"{naming.defense(str(defense))}: {line['accuracy'].iloc[-1]:.1f} %")
        shown = strengths[:: -(-len(strengths) // 6)]
        if curve.bound:
            axis.set_xlim(left=0)
        else:
            axis.set_xscale("log")
            axis.minorticks_off()
        if not curve.bound or len(strengths) == len(shown):
            axis.set_xticks(shown, map(_short, shown))
        axis.set_ylim(0, 100)
        axis.set_xlabel(f"perturbation {parameter} ({curve.bound.symbol})" if curve.bound else f"constant {parameter}")
        axis.set_ylabel("accuracy (%)")
        axis.grid(lw=0.4, color="0.9")
        legend_below(figure, [*names.values()])
    strongest = f"{parameter}={_short(strengths[-1])}"
    words = (
        f"At the largest {parameter} shown, {strongest}, some accuracy remains: {'; '.join(left)}. "
        f"The perturbation is still small, or the attack is too weak: do not read it as robustness. {READ}"
        if left
        else f"Every curve falls below {FALLEN:g} % by {strongest}, as expected of a sound attack. {READ}"
    )
    if strengths[-1] < (most := float(curve.rows["strength"].max())):
        words += f" Beyond, up to {parameter}={_short(most)}, no curve changes."
    library, rest = str(rows["library"].iloc[0]).partition(" ")[0], curve.rest
    title = f"Security curve of {naming.attack(attack, rest)} on {naming.dataset(dataset)}, tier {tier}"
    columns = ["defense", "seed", "strength", "accuracy", "ci_low", "ci_high", "samples"]
    return Figure(slug("curve", dataset, attack, library, rest, tier), title, words, figure, curve.rows[columns])


def _short(strength: float) -> str:
    """A strength as in a spec, such as 8/255; a long decimal is rounded."""
    text = specs.value_text(float(strength))
    return text if len(text) <= 6 else f"{strength:.3g}"


def _where_it_changes(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows up to the strength after which no curve changes, and one strength more."""
    wide = rows.pivot_table(index="strength", columns="defense", values="accuracy").sort_index()
    changing = np.flatnonzero((wide != wide.iloc[-1]).any(axis=1))
    last = max(int(changing[-1]) + 2 if len(changing) else 0, FEWEST - 1)
    return rows[rows["strength"] <= wide.index[min(last, len(wide) - 1)]]
