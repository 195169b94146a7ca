"""The ROC figure: a panel per score, a curve per attack."""

from __future__ import annotations

import pandas as pd

from benchmark.evaluations.detection import SCORES
from benchmark.findings.results import Results
from benchmark.findings.roc_areas import roc, trials
from benchmark.reports.figures.drawing import Figure, canvas, look, seed_mark, slug, style


def detection_figures(results: Results, table: pd.DataFrame) -> list[Figure]:
    """A figure per ensemble: one panel per score, one curve per attack; ``table`` holds the areas."""
    figures: list[Figure] = []
    for trial in trials(results):
        dataset, defense, seed = trial.cell.column
        curves = []
        with style():
            figure = canvas(2.0)
            axes = figure.subplots(1, len(SCORES), sharey=True)
            for axis, score in zip(axes, SCORES, strict=True):
                axis.plot([0, 1], [0, 1], color="0.7", lw=0.8)
                for position, (cell, title, fooled) in enumerate(trial.fooled):
                    label = f"{title}({cell.task.parameters})"
                    false_alarms, caught = roc(trial.clean[score].to_numpy(), fooled[score].to_numpy())
                    axis.plot(false_alarms, caught, label=label, **look(position))
                    curves.append(
                        pd.DataFrame(
                            {"score": score, "attack": label, "false_alarms": false_alarms, "caught": caught}
                        ).round(6)
                    )
                axis.set_title(score.replace("_", ", ") + (" label" if score == "diversity_true" else ""))
                axis.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
                axis.set_aspect("equal")
                axis.set_xlabel("false alarms")
            axes[0].set_ylabel("caught")
            handles, labels = axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
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
        figures.append(Figure(name, title, words + ".", figure, pd.concat(curves, ignore_index=True)))
    return figures
