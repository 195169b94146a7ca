"""Security curves: accuracy against the strength of an attack, with its interval; they must fall to nothing."""

from __future__ import annotations

from benchmark.findings.layout import Layout
from benchmark.findings.strengths import Curve, curves
from benchmark.reports import escaping
from benchmark.reports.figures.drawing import Figure, canvas, legend_height, legend_width, look, margins, slug, style

FALLEN = 5.0
"""Accuracy in percent below which a curve counts as fallen."""


def curve_figures(layout: Layout) -> list[Figure]:
    """A figure per dataset, attack, library and tier that was run at three strengths or more."""
    return [_draw(curve) for curve in curves(layout)]


def _draw(curve: Curve) -> Figure:
    rows, parameter = curve.rows, curve.parameter
    dataset, attack, tier = (str(rows[key].iloc[0]) for key in ("dataset", "attack", "tier"))
    strengths = sorted(rows["strength"].unique())
    left = []
    with style():
        defenses = [escaping.figure(defense) for defense in rows["defense"].unique()]
        figure = canvas(max(2.2, legend_height(len(defenses))), width=4.6)
        margins(figure, left=0.5, right=0.12 + legend_width(defenses))
        axis = figure.subplots()
        for position, (defense, values) in enumerate(rows.groupby("defense", sort=False)):
            line = values.groupby("strength")[["accuracy", "ci_low", "ci_high"]].mean()
            axis.fill_between(
                line.index, line["ci_low"], line["ci_high"], color=look(position)["color"], alpha=0.15, lw=0
            )
            axis.plot(line.index, line["accuracy"], marker="o", ms=3, label=escaping.figure(defense), **look(position))
            if line["accuracy"].iloc[-1] > FALLEN:
                left.append(f"{defense} keeps {line['accuracy'].iloc[-1]:.1f} %")
        if curve.bound:
            axis.set_xlim(left=0)
        else:
            axis.set_xscale("log")
            shown = strengths[:: -(-len(strengths) // 8)]
            axis.set_xticks(shown, [f"{strength:g}" for strength in shown])
            axis.minorticks_off()
        axis.set_ylim(0, 100)
        axis.set_xlabel(f"ε, {curve.bound.symbol}" if curve.bound else f"constant {parameter}")
        axis.set_ylabel("accuracy, %")
        figure.legend(loc="upper right", borderaxespad=0.3)
    strongest = f"{parameter} = {strengths[-1]:g}"
    words = (
        f"At the strongest setting, {strongest}, accuracy has not fallen to nothing: {', '.join(left)}. "
        "Either the setting is still small or the attack is too weak; do not read it as robustness."
        if left
        else f"Every curve falls below {FALLEN:g} % by {strongest}, as it must."
    )
    library, rest = str(rows["library"].iloc[0]).partition(" ")[0], curve.rest
    title = f"Accuracy against the strength of {attack}{f'({rest})' if rest else ''} on {dataset}, tier {tier}"
    columns = ["defense", "seed", "strength", "accuracy", "ci_low", "ci_high", "samples"]
    return Figure(slug("curve", dataset, attack, library, rest, tier), title, words, figure, rows[columns])
