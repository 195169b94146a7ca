"""Accuracy by tier, as bars with intervals: the effect of stronger attacks on every defense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure as Canvas

from benchmark.reports import escaping
from benchmark.reports.figures.drawing import (
    COLUMN,
    WIDTH,
    canvas,
    legend_columns,
    legend_height,
    margins,
    style,
    text_width,
)

SHADES = {
    "clean": "#dcdcd6",
    "paper": "#b4c8de",
    "strict": "#6f95bf",
    "strong": "#1f3d63",
    "black-box": "#c9a36a",
}
"""Colours of the tiers; a darker blue is a stronger attack."""
PUBLISHED = "published"


@dataclass(frozen=True)
class Bar:
    """An accuracy with its interval, in percent; both ends equal the accuracy if there is no interval."""

    accuracy: float
    low: float
    high: float


def tier_bars(
    bars: Mapping[str, Mapping[str, Bar]],
    published: Mapping[str, float],
    labels: Mapping[str, str],
    narrow: bool = False,
) -> Canvas:
    """A group of bars per defense, a bar per tier; a mark for the published number beside tier paper.

    ``labels`` are the tiers' names in the legend. A narrow figure is for a phone: names are above their bars.
    """
    tiers = [tier for tier in SHADES if any(tier in found for found in bars.values())]
    tiers += sorted({tier for found in bars.values() for tier in found} - set(SHADES))
    names = [escaping.figure(name) for name in bars]
    height = (0.62 if narrow else 0.8) / len(tiers)
    with style():
        inches = 0.13 * len(tiers) + (0.3 if narrow else 0.14)
        entries = [*tiers, *([PUBLISHED] if published else [])]
        columns = legend_columns(entries, 3, COLUMN) if narrow else len(entries)
        below = 0.42 + legend_height(-(-len(entries) // columns))
        figure = canvas(0.07 + inches * len(names) + below, COLUMN if narrow else WIDTH)
        margins(figure, left=0.12 if narrow else 0.17 + text_width(names, 8), right=0.12, bottom=below)
        axis = figure.subplots()
        for number, tier in enumerate(tiers):
            offset = (number - (len(tiers) - 1) / 2) * height
            found = [(place, bar[tier]) for place, bar in enumerate(bars.values()) if tier in bar]
            places = np.array([place + offset for place, _ in found])
            values = np.array([bar.accuracy for _, bar in found])
            whiskers = np.array([[bar.accuracy - bar.low, bar.high - bar.accuracy] for _, bar in found]).T.clip(0)
            axis.barh(places, values, height * 0.92, color=SHADES.get(tier, "0.5"), label=escaping.figure(labels[tier]))
            axis.errorbar(values, places, xerr=whiskers, fmt="none", ecolor="0.5", elinewidth=0.7, capsize=1.5)
            for place, (_, bar) in zip(places, found, strict=True):
                axis.text(max(bar.high, bar.accuracy) + 0.8, place, f"{bar.accuracy:.1f}", va="center", fontsize=6)
        marks = [(place, published[name]) for place, name in enumerate(bars) if name in published]
        if marks and "paper" in tiers:
            beside = (tiers.index("paper") - (len(tiers) - 1) / 2) * height
            axis.plot(
                [number for _, number in marks], [place + beside for place, _ in marks], "D",
                color="#b3401f", ms=3.5, mec="white", mew=0.5, label=PUBLISHED, zorder=4,
            )  # fmt: skip
        axis.set_yticks(range(len(names)), [""] * len(names) if narrow else names, fontsize=8)
        for place, name in enumerate(names if narrow else []):
            axis.text(0.5, place - 0.5 * len(tiers) * height - 0.02, name, fontsize=8, va="bottom")
        axis.tick_params(axis="y", length=0)
        axis.set_ylim(len(names) - 0.5, -0.5 - 0.25 * narrow)
        axis.set_xlim(0, 106)
        axis.set_xticks(range(0, 101, 20))
        axis.set_xlabel("accuracy (%)")
        axis.grid(axis="x", lw=0.4, color="0.9")
        axis.set_axisbelow(True)
        figure.legend(loc="lower center", ncols=columns, borderaxespad=0.3)
    return figure
