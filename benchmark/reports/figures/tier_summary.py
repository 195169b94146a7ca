"""Accuracy by tier, for datasets without a worst case: the accuracy under all attacks of one bound."""

from __future__ import annotations

import pandas as pd

from benchmark.evaluations.worst_case import WorstCase
from benchmark.findings import naming
from benchmark.findings.layout import Layout
from benchmark.findings.rows import percent_interval
from benchmark.findings.survival import Survival, shared_bound, survival
from benchmark.reports.figures.drawing import Figure, slug
from benchmark.reports.figures.tier_bars import SHADES, Bar, tier_bars
from defenses import specs


def tier_figures(layout: Layout) -> list[Figure]:
    """A figure per dataset; a dataset with a worst case has `gap_figures` instead."""
    strong = {cell.images.dataset for cell in layout.cells if isinstance(cell.task, WorstCase)}
    figures = [_tiers(layout, dataset) for dataset in layout.datasets if dataset not in strong]
    return [figure for figure in figures if figure]


def _tiers(layout: Layout, dataset: str) -> Figure | None:
    bound = shared_bound(layout, dataset)
    groups = [group for group in SHADES if group in layout.groups(dataset)]
    found = {group: left for group in groups if bound and (left := survival(layout, dataset, group, bound))}
    if not bound or not found:
        return None
    bars = {naming.defense(defense): _bars(layout, dataset, defense, found) for defense in layout.defenses(dataset)}
    labels = {"clean": "clean", **{group: group for group in found}}
    rows = [
        {"defense": name, "tier": tier, "accuracy": bar.accuracy, "low": bar.low, "high": bar.high}
        for name, tiers in bars.items()
        for tier, bar in tiers.items()
    ]
    strength = specs.value_text(bound.radius)
    attacks = naming.listed(
        naming.attack(name) for name in dict.fromkeys(a for left in found.values() for a in left.attacks)
    )
    images = sorted({left.images for left in found.values()})
    several = any(left.seeds > 1 for left in found.values())
    words = (
        f"Share of test images that stay correctly classified under every attack of the tier ({attacks}) with "
        f"ε={strength}, on {' or '.join(map(str, images))} images. "
        f"Whiskers: {'standard deviation over seeds' if several else '95 % intervals'}."
    )
    title = f"Accuracy by tier on {naming.dataset(dataset)}, {bound.symbol}, ε={strength}"
    wide, narrow = (tier_bars(bars, {}, labels, narrow=narrow) for narrow in (False, True))
    return Figure(slug("tiers", dataset), title, words, wide, pd.DataFrame(rows).round(4), narrow)


def _bars(layout: Layout, dataset: str, defense: str, found: dict[str, Survival]) -> dict[str, Bar]:
    bars = {}
    clean = layout.unattacked(dataset, defense)
    if len(clean) == 1:
        samples, accuracy = int(clean["samples"].iloc[0]), float(clean["clean_accuracy"].iloc[0])
        bars["clean"] = Bar(accuracy, *percent_interval(round(accuracy * samples / 100), samples))
    elif len(clean):
        mean, spread = float(clean["clean_accuracy"].mean()), float(clean["clean_accuracy"].std(ddof=1))
        bars["clean"] = Bar(mean, mean - spread, mean + spread)
    for group, left in found.items():
        if defense in left.right:
            accuracy, spread = left.percent(defense), left.spread(defense)
            low, high = left.interval(defense) or (accuracy - spread, accuracy + spread)
            bars[group] = Bar(accuracy, low, high)
    return bars
