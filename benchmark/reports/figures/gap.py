"""The gap between the tiers, on the same images: a figure per bound with a worst case."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmark.attacks.bounds import SYMBOLS
from benchmark.findings import naming
from benchmark.reports.figures.drawing import Figure, slug
from benchmark.reports.figures.tier_bars import Bar, tier_bars
from defenses import specs

TIERS = ("clean", "paper", "strict", "strong")


def gap_figures(table: pd.DataFrame) -> list[Figure]:
    """A figure per dataset and eps: the accuracy of every defense in each tier."""
    if table.empty:
        return []
    return [_gap(part) for _, part in table.groupby(["dataset", "norm", "eps"], sort=False)]


def _gap(rows: pd.DataFrame) -> Figure:
    dataset, norm, eps = str(rows["dataset"].iloc[0]), rows["norm"].iloc[0], float(rows["eps"].iloc[0])
    named = rows.assign(defense=rows["defense"].map(naming.defense))
    bars = {str(name): _bars(part) for name, part in named.groupby("defense", sort=False)}
    published = {str(name): float(part["published"].min()) for name, part in named.groupby("defense", sort=False)}
    published = {name: number for name, number in published.items() if not np.isnan(number)}
    tiers = [tier for tier in TIERS if any(tier in found for found in bars.values())]
    strength = specs.value_text(eps)
    words = f"Accuracy under the worst case of each tier on {_images(rows)}, ε={strength}."
    if {"paper", "strict"} <= set(tiers):
        words += " Tiers paper and strict take the attacks that both have."
    words += _widest(bars, "strict" if "strict" in tiers else "paper")
    words += " Whiskers: standard deviation over seeds." if rows["seed"].nunique() > 1 else " Whiskers: 95 % intervals."
    suites = [str(suite) for suite in dict.fromkeys(rows["suite"]) if suite != "full"]
    if suites:
        words += f" The strong tier is the {' or '.join(suites)} suite: its numbers may still be too high."
    return Figure(
        slug("gap", dataset, "" if norm == "linf" else norm, f"eps{eps:g}"),
        f"Accuracy by tier on {naming.dataset(dataset)}, {SYMBOLS[norm]}, ε={strength}",
        words,
        tier_bars(bars, published, {tier: tier for tier in tiers}),
        rows,
        tier_bars(bars, published, {tier: tier for tier in tiers}, narrow=True),
    )


def _bars(rows: pd.DataFrame) -> dict[str, Bar]:
    """The bars of one defense, one per tier: with the interval for one seed, the standard deviation for several."""
    bars = {}
    for tier in TIERS:
        found = rows[rows[tier].notna()]
        values = found[tier].astype(float)
        if len(values) == 1:
            bars[tier] = Bar(values.iloc[0], float(found[f"{tier}_low"].iloc[0]), float(found[f"{tier}_high"].iloc[0]))
        elif len(values):
            mean, spread = float(values.mean()), float(values.std(ddof=1))
            bars[tier] = Bar(mean, mean - spread, mean + spread)
    return bars


def _images(rows: pd.DataFrame) -> str:
    low, high = int(rows["images"].min()), int(rows["images"].max())
    return f"the same {low} test images" if low == high else f"the first {low} to {high} test images, by defense"


def _widest(bars: dict[str, dict[str, Bar]], before: str) -> str:
    """The defense whose accuracy falls most from the tier ``before`` to tier strong, in words."""
    falls = {
        name: found[before].accuracy - found["strong"].accuracy
        for name, found in bars.items()
        if before in found and "strong" in found
    }
    if not falls:
        return ""
    name = max(falls, key=lambda one: falls[one])
    first, last = bars[name][before].accuracy, bars[name]["strong"].accuracy
    return f" Largest fall from {before} to strong: {name}, from {first:.1f} % to {last:.1f} %."
