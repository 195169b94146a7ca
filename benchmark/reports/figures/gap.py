"""How far the tiers lie apart: what each leaves of every defense, as bars."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmark.attacks.bounds import SYMBOLS
from benchmark.reports import escaping
from benchmark.reports.figures.drawing import Figure, canvas, legend_width, margins, slug, style, text_width
from defenses import specs

SHADES = {"paper": "#c6d4e1", "strict": "#7b9cc0", "strong": "#1f3d63"}
"""Darker is the stronger attack."""


def gap_figures(table: pd.DataFrame) -> list[Figure]:
    """A figure per dataset and eps: what each tier leaves of every defense."""
    if table.empty:
        return []
    return [_gap(part) for _, part in table.groupby(["dataset", "norm", "eps"], sort=False)]


def _gap(rows: pd.DataFrame) -> Figure:
    dataset, norm, eps = str(rows["dataset"].iloc[0]), rows["norm"].iloc[0], float(rows["eps"].iloc[0])
    means = rows.groupby("defense", sort=False)[["published", "paper", "strict", "strong"]].mean(numeric_only=False)
    means = means.astype(float)
    tiers = [tier for tier in SHADES if means[tier].notna().any()]
    limit = min(110, 1.15 * float(np.nanmax(means.to_numpy())) + 5)
    with style():
        figure = canvas(0.55 + 0.42 * len(means), width=5.2)
        names = [escaping.figure(name) for name in means.index]
        legend = legend_width(["published", *tiers] if means["published"].notna().any() else tiers)
        margins(figure, left=0.17 + text_width(names), right=0.12 + legend)
        axis = figure.subplots()
        height = 0.8 / len(tiers)
        places = np.arange(len(means))
        for number, tier in enumerate(tiers):
            values = means[tier].fillna(0.0)
            offset = (number - (len(tiers) - 1) / 2) * height
            axis.barh(places + offset, values, height * 0.92, color=SHADES[tier], label=tier)
            for place, value, mark in zip(places, means[tier], means["published"], strict=True):
                inside = number == 0 and 0.1 * limit < value < mark < value + 0.15 * limit  # else it meets the mark
                if not np.isnan(value):
                    x, align = value + (-0.014 if inside else 0.014) * limit, "right" if inside else "left"
                    axis.text(x, place + offset, f"{value:.1f}", ha=align, va="center", fontsize=6)
        if means["published"].notna().any():
            first = places - (len(tiers) - 1) / 2 * height  # beside the paper's own way of attacking
            axis.plot(means["published"], first, "|", color="#b3401f", ms=9, mew=1.6, label="published", ls="none")
        axis.set_yticks(places, names)
        axis.invert_yaxis()
        axis.set_xlim(0, limit)
        axis.set_xlabel("accuracy, %")
        figure.legend(loc="upper right", borderaxespad=0.3)
    strength = specs.value_text(eps)
    low, high = int(rows["images"].min()), int(rows["images"].max())
    images = f"the same {low} images" if low == high else f"the first images, {low} to {high} by defense"
    reference = "strict" if "strict" in tiers else tiers[0]
    gaps = (means[reference] - means["strong"]).dropna()
    suites = [str(suite) for suite in dict.fromkeys(rows["suite"]) if suite != "full"]
    words = f"Worst case of each tier on {images}, ε = {strength}."
    if {"paper", "strict"} <= set(tiers):
        words += " Tiers paper and strict over the attacks that both have, if there are any."
    if reference != "strong" and not gaps.empty:
        widest = str(gaps.idxmax())
        words += (
            f" Widest between {reference} and strong: {widest}, {means.loc[widest, reference]:.1f} % against "
            f"{means.loc[widest, 'strong']:.1f} %."
        )
    if suites:
        words += f" The suite is the {' or '.join(suites)} one: the strong numbers may still be too high."
    return Figure(
        slug("gap", dataset, "" if norm == "linf" else norm, f"eps{eps:g}"),
        f"What each tier leaves, {dataset}, {SYMBOLS[norm]}, ε = {strength}",
        words,
        figure,
        rows,
    )
