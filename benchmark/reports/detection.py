"""The ROC figure: can a score of the ensemble's own prediction tell adversarial images from clean ones?"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray
from scipy import stats

from benchmark.cells import Cell, attack_titles
from benchmark.evaluations.detection import SCORES
from benchmark.reports.figures import (
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
from benchmark.store import Store

Scores = NDArray[np.float64]
RATES = {0.0: "0", 0.5: ".5", 1.0: "1"}
"""Ticks of both axes of a ROC curve."""


def auc_interval(clean: Scores, adversarial: Scores, confidence: float = 0.95) -> tuple[float, float, float]:
    """Area under the ROC curve of "clean scores higher", with DeLong's interval."""
    if not len(clean) or not len(adversarial):
        return float("nan"), float("nan"), float("nan")
    both = stats.rankdata(np.concatenate([clean, adversarial]))
    within_clean, within_adversarial = stats.rankdata(clean), stats.rankdata(adversarial)
    over = (both[: len(clean)] - within_clean) / len(adversarial)  # share of adversarial scores below each clean one
    under = 1 - (both[len(clean) :] - within_adversarial) / len(clean)
    area = float(over.mean())
    variance = (np.var(over, ddof=1) / len(clean) if len(clean) > 1 else 0.0) + (
        np.var(under, ddof=1) / len(adversarial) if len(adversarial) > 1 else 0.0
    )
    half = stats.norm.ppf(0.5 + confidence / 2) * variance**0.5
    return area, max(area - half, 0.0), min(area + half, 1.0)


def detection_table(store: Store) -> pd.DataFrame:
    """AUC, and the share caught at one threshold per false-alarm rate, fixed on held-out clean images beforehand."""
    rows = []
    titles = attack_titles(store.asked())
    for clean_cell, attacked in _pairs(store):
        clean_records = store.read(clean_cell)
        compared = int(clean_cell.settings["compared"])
        clean, held_out = clean_records.iloc[:compared], clean_records.iloc[compared:]
        for cell in attacked:
            fooled = _fooled(store.read(cell))
            for score in SCORES:
                area, low, high = auc_interval(clean[score].to_numpy(), fooled[score].to_numpy())
                row = {
                    "dataset": cell.dataset,
                    "defense": cell.defense,
                    "attack": titles[cell.dataset, cell.attack, cell.library],
                    "parameters": cell.parameters,
                    "seed": cell.seed,
                    "score": score,
                    "clean_images": compared,
                    "adversarial_images": len(fooled),
                    "auc": round(area, 6),
                    "auc_low": round(low, 6),
                    "auc_high": round(high, 6),
                }
                for rate in (0.01, 0.05):
                    threshold = np.quantile(held_out[score], rate)
                    percent = f"{rate:.0%}".replace("%", "")
                    caught = float((fooled[score] < threshold).mean()) if len(fooled) else float("nan")
                    row[f"caught_at_{percent}"] = round(caught, 6)
                    row[f"false_alarms_at_{percent}"] = round(float((clean[score] < threshold).mean()), 6)
                rows.append(row)
    return pd.DataFrame(rows)


def detection_figures(store: Store) -> list[Figure]:
    """A figure per ensemble: one panel per score, one curve per attack."""
    figures: list[Figure] = []
    titles = attack_titles(store.asked())
    table = detection_table(store)
    for clean_cell, attacked in _pairs(store):
        compared = int(clean_cell.settings["compared"])
        clean = store.read(clean_cell).iloc[:compared]
        labels = [f"{titles[cell.dataset, cell.attack, cell.library]}({cell.parameters})" for cell in attacked]
        fooled = [_fooled(store.read(cell)) for cell in attacked]
        curves = []
        for score in SCORES:
            for label, records in zip(labels, fooled, strict=True):
                false_alarms, caught = _roc(clean[score].to_numpy(), records[score].to_numpy())
                curves.append(
                    pd.DataFrame(
                        {"score": score, "attack": label, "false_alarms": false_alarms, "caught": caught}
                    ).round(6)
                )
        wanted = {"dataset": clean_cell.dataset, "defense": clean_cell.defense, "seed": clean_cell.seed}
        wanted |= {"clean_images": compared, "score": "diversity"}
        areas = table[(table[list(wanted)] == pd.Series(wanted)).all(axis=1)]
        words = "AUC of the diversity score: " + ", ".join(
            f"{row.attack}({row.parameters}) {row.auc:.2f}" for row in areas.itertuples()
        )
        title = f"Detection by the ensemble's own scores: {clean_cell.defense} on {clean_cell.dataset}"
        name = slug("detection", clean_cell.dataset, clean_cell.defense, seed_mark(clean_cell.seed))
        if any(figure.name == name for figure in figures):  # some attacks were run on another number of images
            name, title = slug(name, f"n{compared}"), f"{title}, {compared} images"
        figures.append(Figure(name, title, words + ".", _draw(labels, curves), pd.concat(curves, ignore_index=True)))
    return figures


def _draw(labels: list[str], curves: list[pd.DataFrame]) -> Canvas:
    """A panel per score on one sheet, where a rate of 1 is a unit; the curves come by score, then by attack."""
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


def _fooled(records: pd.DataFrame) -> pd.DataFrame:
    """Images that were right before the attack and are wrong now."""
    right = records["clean_prediction"] == records["label"]
    return records[right & (records["adversarial_prediction"] != records["label"])]


def _pairs(store: Store) -> list[tuple[Cell, list[Cell]]]:
    """Clean cells with the finished attacks on the same ensemble and number of images, where there are any."""
    cells = [cell for cell in store.asked() if cell.evaluation == "detection" and store.has(cell)]
    attacks = [cell for cell in cells if cell.attack != "none"]
    pairs = [
        (clean, [cell for cell in attacks if _ensemble(cell) == _ensemble(clean) and cell.samples == compared])
        for clean in cells
        if (compared := clean.settings.get("compared"))
    ]
    return [(clean, attacked) for clean, attacked in pairs if attacked]


def _ensemble(cell: Cell) -> tuple[str, str, str, int]:
    return cell.dataset, cell.defense, cell.weights, cell.seed


def _roc(clean: Scores, adversarial: Scores) -> tuple[Scores, Scores]:
    """False-alarm rate and share caught when the alarm is raised below a falling threshold."""
    thresholds = np.concatenate([[-np.inf], np.unique(np.concatenate([clean, adversarial])), [np.inf]])
    false_alarms = np.searchsorted(np.sort(clean), thresholds, side="left") / max(len(clean), 1)
    caught = np.searchsorted(np.sort(adversarial), thresholds, side="left") / max(len(adversarial), 1)
    return false_alarms, caught
