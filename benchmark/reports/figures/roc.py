"""The ROC figure: a panel per score, a curve per attack."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure as Canvas

from benchmark.evaluations.detection import SCORES
from benchmark.findings.results import Results
from benchmark.findings.roc_areas import roc, trials
from benchmark.reports import escaping
from benchmark.reports.figures.drawing import (
    SMALL,
    WIDTH,
    Figure,
    frames,
    legend_columns,
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


def detection_figures(results: Results, table: pd.DataFrame) -> list[Figure]:
    """A figure per ensemble: one panel per score, one curve per attack; ``table`` holds the areas."""
    figures: list[Figure] = []
    for trial in trials(results):
        dataset, defense, seed = trial.cell.column
        labels = [f"{title}({cell.task.parameters})" for cell, title, _ in trial.fooled]
        curves = []
        for score in SCORES:
            for label, (_, _, fooled) in zip(labels, trial.fooled, strict=True):
                false_alarms, caught = roc(trial.clean[score].to_numpy(), fooled[score].to_numpy())
                columns = {"score": score, "attack": label, "false_alarms": false_alarms, "caught": caught}
                curves.append(pd.DataFrame(columns).round(6))
        compared = len(trial.clean)
        wanted = {"dataset": dataset, "defense": defense, "seed": seed}
        wanted |= {"clean_images": compared, "score": "diversity"}
        areas = table[(table[list(wanted)] == pd.Series(wanted)).all(axis=1)]
        words = "AUC of the diversity score: " + ", ".join(
            f"{row.attack}({row.parameters}) {row.auc:.2f}" for row in areas.itertuples()
        )
        title = f"Detection by the ensemble's own scores: {defense} on {dataset}"
        name = slug("detection", dataset, defense, seed_mark(seed))
        if any(figure.name == name for figure in figures):  # some attacks were run on another number of images
            name, title = slug(name, f"n{compared}"), f"{title}, {compared} images"
        figures.append(Figure(name, title, words + ".", _draw(labels, curves), pd.concat(curves, ignore_index=True)))
    return figures


def _draw(labels: list[str], curves: list[pd.DataFrame]) -> Canvas:
    """A panel per score on one sheet, where a rate of 1 is a unit; the curves come by score, then by attack."""
    labels = [escaping.figure(label) for label in labels]
    left, edge, step = 0.52, 0.05, 1.22
    unit = (WIDTH - left - 0.07) / (step * len(SCORES) - step + 1 + 2 * edge)
    columns = legend_columns(labels)
    height = 0.28 + (1 + 2 * edge) * unit + 0.42 + legend_height(-(-len(labels) // columns))
    bottom, ticks = 1 + edge, [rate + edge for rate in RATES]
    with style():
        width = max(WIDTH, legend_width(labels) + 0.1)
        figure, axis = sheet(height, width, left=left + edge * unit, top=0.28 + edge * unit, unit=(unit, unit))
        corners = [(column * step - edge, bottom) for column in range(len(SCORES))]
        frames(axis, corners, (1 + 2 * edge, 1 + 2 * edge), ticks, ticks)
        for column, score in enumerate(SCORES):
            x = column * step
            name = score.replace("_", ", ") + (" label" if score == "diversity_true" else "")
            axis.text(x + 0.5, -edge - 0.09 / unit, name, ha="center")
            axis.text(x + 0.5, bottom + 0.36 / unit, "false alarms", ha="center")
            for rate, words in RATES.items():
                axis.text(x + rate, bottom + 0.19 / unit, words, fontsize=SMALL, ha="center")
            axis.plot([x, x + 1], [1, 0], color="0.7", lw=0.8)
        for rate, words in RATES.items():
            axis.text(-edge - 0.1 / unit, 1 - rate, words, fontsize=SMALL, ha="right", va="center")
        axis.text(-edge - 0.27 / unit, 0.5, "caught", rotation=90, ha="right", va="center")
        lines = []
        for number, curve in enumerate(curves):
            column, position = divmod(number, len(labels))
            lines += axis.plot(column * step + curve["false_alarms"], 1 - curve["caught"], **look(position))
        figure.legend(lines[: len(labels)], labels, loc="lower center", ncols=columns, borderaxespad=0.3)
    return figure
