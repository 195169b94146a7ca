"""Security curves of minimum-norm attacks: the share of images whose smallest perturbation exceeds each radius."""

from __future__ import annotations

import pandas as pd

from benchmark.attacks.bounds import SYMBOLS
from benchmark.findings import naming
from benchmark.findings.radii import RadiusCurve, radius_table
from benchmark.reports import escaping
from benchmark.reports.figures.drawing import Figure, column_figure, legend_below, look, slug, style


def radius_figures(curves: list[RadiusCurve]) -> list[Figure]:
    """A figure per dataset, minimum-norm attack and library."""
    return [_draw(curve) for curve in curves]


def _draw(curve: RadiusCurve) -> Figure:
    rows = radius_table([curve])
    symbol = SYMBOLS[curve.norm]
    with style():
        names = {defense: escaping.figure(naming.defense(defense)) for defense in rows["defense"].unique()}
        figure, axis = column_figure(1.7, [*names.values()])
        for position, (defense, values) in enumerate(rows.groupby("defense", sort=False)):
            line = values.groupby("radius")[["accuracy", "ci_low", "ci_high"]].mean()
            colour = look(position)["color"]
            axis.fill_between(line.index, line["ci_low"], line["ci_high"], step="post", color=colour, alpha=0.15, lw=0)
            axis.plot(line.index, line["accuracy"], drawstyle="steps-post", label=names[defense], **look(position))
            beside = curve.points[curve.points["defense"] == defense].groupby("radius")["accuracy"].mean()
            axis.plot(beside.index, beside, marker="x", ms=4, ls="none", color=colour)
        axis.set_xlim(left=0)
        axis.set_ylim(0, 100)
        axis.set_xlabel(f"perturbation ({symbol})")
        axis.set_ylabel("accuracy (%)")
        axis.grid(lw=0.4, color="0.9")
        legend_below(figure, [*names.values()])
    attack, dataset = naming.attack(curve.attack), naming.dataset(curve.dataset)
    title = f"Security curve of {attack} on {dataset}, smallest perturbations found, {symbol}"
    library = curve.library.partition(" ")[0]
    name = slug("curve", curve.dataset, curve.attack, library, curve.norm, "radii")
    return Figure(name, title, _words(curve, rows), figure, _with_points(curve, rows))


def _words(curve: RadiusCurve, rows: pd.DataFrame) -> str:
    failed = rows.drop_duplicates(["defense", "seed"]).set_index("defense")["failed"]
    words = (
        "The share of images whose smallest perturbation is larger than each radius. A misclassified clean image has "
        "radius 0. An image that the attack could not fool survives every radius; their number. "
        + "; ".join(
            f"{naming.defense(str(name))}: {n}" for name, n in failed.groupby(level=0, sort=False).sum().items()
        )
        + ". Smaller perturbations may exist, so the true curve lies at or below this one."
    )
    if len(curve.settings) > 1:
        words += f" Of {len(curve.settings)} settings, the smallest perturbation of each image counts."
    if len(curve.points):
        words += " Crosses: the lowest accuracy under an attack within that bound, on its own images."
    return words


def _with_points(curve: RadiusCurve, rows: pd.DataFrame) -> pd.DataFrame:
    """The numbers of the curve, then the numbers of the crosses with their attacks."""
    columns = ["attack", "defense", "seed", "radius", "accuracy", "ci_low", "ci_high", "images", "failed"]
    return pd.concat([rows, curve.points])[columns] if len(curve.points) else rows[columns]
