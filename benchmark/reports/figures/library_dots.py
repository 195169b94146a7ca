"""One attack in several libraries: accuracy with its interval, and time."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.ticker import LogFormatter

from benchmark.findings import naming
from benchmark.reports import escaping
from benchmark.reports.figures.drawing import (
    COLOURS,
    Figure,
    canvas,
    legend_columns,
    legend_height,
    margins,
    seed_mark,
    slug,
    style,
    text_width,
)


class _Between(LogFormatter):
    """Plain tick labels, also between powers of ten if these are few; matplotlib's own labels are formulas."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def crosscheck_figures(table: pd.DataFrame) -> list[Figure]:
    """A figure per dataset and defense: accuracy with its interval, and seconds, of every library."""
    keys = ["dataset", "defense", "tier", "seed"]
    return [_figure(rows) for _, rows in table.groupby(keys, sort=False) if rows["samples"].any()]


def _figure(rows: pd.DataFrame) -> Figure:
    dataset, defense, tier = (str(rows[name].iloc[0]) for name in ("dataset", "defense", "tier"))
    done = rows[rows["samples"] > 0]
    names = done["attack"].map(lambda name: escaping.figure(naming.attack(name))) + done["parameters"].map(_below)
    attacks = list(dict.fromkeys(names))
    libraries = list(dict.fromkeys(done["library"]))
    several = names.groupby(names)
    heights = names.map(attacks.index) + 0.17 * (several.cumcount() - (several.transform("size") - 1) / 2)
    with style():
        across = legend_columns([*map(escaping.figure, libraries)], 5)
        above = legend_height(-(-len(libraries) // across)) + 0.05
        figure = canvas(0.42 * len(attacks) + 0.45 + above)
        margins(figure, left=0.1 + text_width(attacks), top=above)
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2), gridspec_kw={"wspace": 0.06})
        for position, library in enumerate(libraries):
            mine = done[done["library"] == library]
            y = heights[mine.index]
            whiskers = [mine["accuracy"] - mine["ci_low"], mine["ci_high"] - mine["accuracy"]]
            look: dict[str, Any] = {"color": COLOURS[position % len(COLOURS)], "ms": 4, "linestyle": "none"}
            look["marker"] = "osD^vPX*"[position % 8]
            left.errorbar(mine["accuracy"], y, xerr=whiskers, elinewidth=0.7, label=escaping.figure(library), **look)
            right.plot(1000 * mine["seconds"], y, **look)
        left.set_yticks(range(len(attacks)), attacks)
        left.set_ylim(len(attacks) - 0.5, -0.5)
        left.set_xlim(-2, 102)
        left.set_xlabel("accuracy under attack (%)")
        right.set_xscale("log")
        right.xaxis.set_major_formatter("{x:g}")
        right.xaxis.set_minor_formatter(_Between(labelOnlyBase=False, minor_thresholds=(1, 0.4)))
        right.set_xlabel("milliseconds per image")
        for axis in (left, right):
            axis.grid(axis="x", lw=0.4, color="0.85")
            axis.set_axisbelow(True)
            for line in range(1, len(attacks)):
                axis.axhline(line - 0.5, lw=0.5, color="0.75")
            axis.tick_params(axis="y", length=0)
        figure.legend(loc="upper center", ncols=across, borderaxespad=0.2)
    title = f"One attack in several libraries: {naming.defense(defense)} on {naming.dataset(dataset)}, tier {tier}"
    name = slug("crosscheck", dataset, defense, tier, seed_mark(int(rows["seed"].iloc[0])))
    columns = ["attack", "parameters", "library", "samples", "accuracy", "ci_low", "ci_high", "seconds"]
    words = (
        "Accuracy with its 95 % interval, and time on a logarithmic scale. The topmost library of each attack is the "
        "default. Libraries that implement the same attack should agree within their intervals."
    )
    return Figure(name, title, words, figure, rows[columns])


def _below(parameters: str) -> str:
    """The parameters of an attack, on a separate line."""
    return f"\n{escaping.figure(naming.settings(parameters))}" if parameters else ""
