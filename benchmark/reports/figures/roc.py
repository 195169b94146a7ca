"""The ROC figure: a panel per score, a curve per attack, with their AUCs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from benchmark.evaluations.detection import SCORES
from benchmark.findings import naming
from benchmark.findings.results import Results
from benchmark.findings.roc_areas import roc, trials
from benchmark.reports import escaping
from benchmark.reports.figures.drawing import (
    SMALL,
    WIDTH,
    Figure,
    frames,
    legend_height,
    legend_width,
    look,
    seed_mark,
    sheet,
    slug,
    style,
)

RATES = {0.0: "0", 0.5: ".5", 1.0: "1"}
"""Ticks of both axes of a ROC curve."""
ACROSS = 3
"""Panels side by side; the legend has the place after the last panel."""


def detection_figures(results: Results, table: pd.DataFrame) -> list[Figure]:
    """A figure per ensemble: one panel per score, one curve per attack; ``table`` holds the areas."""
    figures: list[Figure] = []
    for trial in trials(results):
        dataset, defense, seed = trial.cell.column
        curves = []
        for score in SCORES:
            for cell, title, fooled in trial.fooled:
                false_positives, true_positives = roc(trial.clean[score].to_numpy(), fooled[score].to_numpy())
                columns = {"score": score, "attack": f"{title}({cell.task.parameters})"}
                rates = {"false_positive_rate": false_positives, "true_positive_rate": true_positives}
                curves.append(pd.DataFrame(columns | rates).round(6))
        compared = len(trial.clean)
        wanted = {"dataset": dataset, "defense": defense, "seed": seed, "clean_images": compared}
        areas = table[(table[list(wanted)] == pd.Series(wanted)).all(axis=1)]
        labels = [naming.attack(title, cell.task.parameters) for cell, title, _ in trial.fooled]
        found = [
            [_area(areas, score, title, cell.task.parameters) for cell, title, _ in trial.fooled] for score in SCORES
        ]
        told = "; ".join(f"{label}: {area:.2f}" for label, area in zip(labels, found[0], strict=True))
        words = (
            f"AUC of the diversity score (predicted label). {told}. Above the diagonal, the score detects the attack; "
            "below it, the attack makes its images look more normal than clean ones. Numbers in the panels are AUCs "
            f"with all {compared} clean images as negatives; detection.csv also has the AUCs with only the correctly "
            "classified ones."
        )
        title = f"ROC curves of detection scores: {naming.defense(defense)} on {naming.dataset(dataset)}"
        name = slug("detection", dataset, defense, seed_mark(seed))
        if any(figure.name == name for figure in figures):  # some attacks were run on another number of images
            name, title = slug(name, f"n{compared}"), f"{title}, {compared} images"
        figures.append(Figure(name, title, words, _draw(labels, curves, found), pd.concat(curves, ignore_index=True)))
    return figures


def _area(areas: pd.DataFrame, score: str, attack: str, parameters: str) -> float:
    """The AUC of a curve."""
    row = areas[(areas["score"] == score) & (areas["attack"] == attack) & (areas["parameters"] == parameters)]
    return float(row["auc"].iloc[0])


def _draw(labels: list[str], curves: list[pd.DataFrame], areas: list[list[float]]) -> Canvas:
    """Draw the panels on one sheet, in units of a rate of 1; curves are ordered by score, then by attack."""
    labels = [escaping.figure(label) for label in labels]
    left, edge, head, foot = 0.52, 0.05, 0.3, 0.5
    unit = 1.42
    step = (WIDTH - left - 0.07) / ACROSS / unit
    down = 1 + 2 * edge + (head + foot) / unit
    lines = -(-len(SCORES) // ACROSS)
    ticks = [rate + edge for rate in RATES]
    with style():
        width = max(WIDTH, left + (ACROSS - 1) * step * unit + legend_width(labels) + 0.1)
        height = max(lines * down * unit, (lines - 1) * down * unit + legend_height(len(labels)) + 0.3)
        figure, axis = sheet(height, width, left=left + edge * unit, top=head + edge * unit, unit=(unit, unit))
        places = [(number % ACROSS * step, number // ACROSS * down) for number in range(len(SCORES))]
        frames(axis, [(x - edge, y + 1 + edge) for x, y in places], (1 + 2 * edge,) * 2, ticks, ticks)
        for (x, y), score, found in zip(places, SCORES, areas, strict=True):
            axis.text(x + 0.5, y - edge - 0.08 / unit, naming.score(score), ha="center")
            axis.text(x + 0.5, y + 1 + edge + 0.36 / unit, "false positive rate", ha="center")
            axis.text(x - edge - 0.27 / unit, y + 0.5, "true positive rate", rotation=90, ha="right", va="center")
            for rate, words in RATES.items():
                axis.text(x + rate, y + 1 + edge + 0.19 / unit, words, fontsize=SMALL, ha="center")
                axis.text(x - edge - 0.1 / unit, y + 1 - rate, words, fontsize=SMALL, ha="right", va="center")
            axis.plot([x, x + 1], [y + 1, y], color="0.7", lw=0.8)
            _areas(axis, x + 1, y + 1, found, 0.115 / unit)
        drawn = []
        for number, curve in enumerate(curves):
            panel, position = divmod(number, len(labels))
            x, y = places[panel]
            rates = curve["false_positive_rate"], curve["true_positive_rate"]
            drawn += axis.plot(x + rates[0], y + 1 - rates[1], **look(position))
        corner = (len(SCORES) % ACROSS * step - edge, (len(SCORES) // ACROSS) * down - edge)
        axis.legend(
            drawn[: len(labels)], labels, loc="upper left", bbox_to_anchor=corner, bbox_transform=axis.transData,
            borderaxespad=0, title="attack", alignment="left", title_fontsize=SMALL,
        )  # fmt: skip
    return figure


def _areas(axis: Axes, right: float, bottom: float, areas: list[float], line: float) -> None:
    """Write the AUCs of a panel in its lower right corner, one below the other, each beside a sample of its line."""
    high = (len(areas) + 1) * line
    box = Rectangle((right - 0.32, bottom - high), 0.33, high, fc="white", ec="none", alpha=0.8, zorder=2.5)
    axis.add_patch(box)
    for number, area in enumerate(reversed(areas)):
        place = bottom - 0.02 - number * line
        axis.plot([right - 0.3, right - 0.2], [place - 0.3 * line] * 2, zorder=3, **look(len(areas) - 1 - number))
        axis.text(right, place, "–" if np.isnan(area) else f"{area:.2f}", fontsize=6.5, ha="right")
    axis.text(right, bottom - 0.02 - len(areas) * line, "AUC", fontsize=6.5, ha="right")
