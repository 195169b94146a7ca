"""The strong tier for readers: how far the tiers lie apart, and which attack broke how many images first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from benchmark.cells import Cell, in_both_tiers
from benchmark.evaluations.strong import read_stage
from benchmark.reports.figures import Figure, canvas, legend_width, margins, slug, style, text_width
from benchmark.reports.tables import Rows
from benchmark.statistics import accuracy_interval
from benchmark.store import Store
from defenses import specs

SHADES = {"paper": "#c6d4e1", "strict": "#7b9cc0", "strong": "#1f3d63"}
"""Darker is the stronger attack."""


def suite_table(store: Store) -> pd.DataFrame:
    """Per strong cell and attack of its suite: how many images it met, how many it fooled first, at what cost."""
    rows: list[dict[str, Any]] = []
    for cell in store.asked():
        if cell.evaluation != "strong" or not store.has(cell):
            continue
        records = store.read(cell)
        left = int((records["clean_prediction"] == records["label"]).sum())
        for number, text in enumerate(cell.settings["stages"]):
            stage = read_stage(text)
            fooled = int((records["broken_at"] == number).sum())
            prefix = f"stage{number:02d}_"
            own = records.get(f"{prefix}source_fooled")
            rows.append(
                {
                    "dataset": cell.dataset,
                    "defense": cell.defense,
                    "eps": cell.settings["eps"],
                    "attack": stage.label,
                    "library": f"{stage.named.library} {text.rpartition('[')[2].rstrip(']')}",
                    "images": left,
                    "fooled_first": fooled,
                    "fooled_source": None if own is None else int(own.sum()),
                    "accuracy_after": round(100 * (left - fooled) / len(records), 4),
                    **{
                        name: round(float(records[f"{prefix}{name}"].sum()) / left if left else 0.0, 2)
                        for name in ("forwards", "backwards")
                    },
                    "seconds": round(float(records[f"{prefix}seconds"].sum()), 2),
                    "seed": cell.seed,
                }
            )
            left -= fooled
    table = pd.DataFrame(rows)
    if not table.empty:
        table["fooled_source"] = table["fooled_source"].astype("Int64")
    return table


def gap_table(rows: Rows) -> pd.DataFrame:
    """Per defense and eps with a strong cell: the worst case of each tier on the very same images, in percent.

    Tiers paper and strict over the attacks that both have, so that they differ in the way of attacking alone.
    """
    found = []
    for cell in rows.cells:
        if cell.evaluation != "strong" or cell.identity not in rows.records:
            continue
        strong = rows.records[cell.identity]["correct"].to_numpy(dtype=bool)
        row: dict[str, Any] = {
            "dataset": cell.dataset,
            "defense": cell.defense,
            "eps": cell.settings["eps"],
            "seed": cell.seed,
            "images": len(strong),
        }
        beside = [other for other in rows.cells if _beside(cell, other) and other.identity in rows.records]
        published = [other.published for other in beside if other.published is not None]
        row["published"] = min(published) if published else None
        large = [other for other in beside if other.samples >= len(strong)]
        both = in_both_tiers(large)
        for tier in ("paper", "strict"):
            outcomes = [
                rows.records[other.identity]["correct"].to_numpy(dtype=bool)[: len(strong)]
                for other in large
                if other.tier == tier and (not both or other.setting in both)
            ]
            worst = np.logical_and.reduce(outcomes) if outcomes else None
            row[tier] = None if worst is None else round(100 * float(worst.mean()), 4)
            row[f"{tier}_attacks"] = len(outcomes)
        low, high = accuracy_interval(int(strong.sum()), len(strong))
        row |= {"strong": round(100 * float(strong.mean()), 4), "ci_low": round(100 * low, 4)}
        row |= {"ci_high": round(100 * high, 4), "suite": cell.settings["suite"]}
        found.append(row)
    return pd.DataFrame(found)


def _beside(strong: Cell, other: Cell) -> bool:
    same = ("dataset", "defense", "members", "weights", "seed")
    return (
        other.evaluation == "whitebox"
        and "gamma" not in other.settings  # JSMA calls its step eps
        and not other.settings.get("targeted")
        and other.settings.get("eps") == strong.settings["eps"]
        and all(getattr(strong, name) == getattr(other, name) for name in same)
    )


def gap_figures(rows: Rows) -> list[Figure]:
    """A figure per dataset and eps: what each tier leaves of every defense."""
    table = gap_table(rows)
    if table.empty:
        return []
    return [_gap(part) for _, part in table.groupby(["dataset", "eps"], sort=False)]


def _gap(rows: pd.DataFrame) -> Figure:
    dataset, eps = str(rows["dataset"].iloc[0]), float(rows["eps"].iloc[0])
    means = rows.groupby("defense", sort=False)[["published", "paper", "strict", "strong"]].mean(numeric_only=False)
    means = means.astype(float)
    tiers = [tier for tier in SHADES if means[tier].notna().any()]
    limit = min(110, 1.15 * float(np.nanmax(means.to_numpy())) + 5)
    with style():
        figure = canvas(0.55 + 0.42 * len(means), width=5.2)
        names = [str(name) for name in means.index]
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
        slug("gap", dataset, f"eps{eps:g}"), f"What each tier leaves, {dataset}, ε = {strength}", words, figure, rows
    )
