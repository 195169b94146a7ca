"""ROC areas: how well a score of the ensemble's prediction separates adversarial and clean images (detection.csv)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from benchmark.cells.cell import Cell, attack_titles
from benchmark.evaluations.detection import SCORES, Detection
from benchmark.findings.results import Results
from benchmark.harness.records import was_right

Scores = NDArray[np.float64]
RATES = (0.01, 0.05)
"""False positive rates at which the true positive rate is measured."""


class Trial(NamedTuple):
    """A detector's images: clean images, held-out clean images for the threshold, and fooled images of each attack."""

    cell: Cell
    """The cell of the clean images."""
    clean: pd.DataFrame
    held_out: pd.DataFrame
    fooled: list[tuple[Cell, str, pd.DataFrame]]
    """Every attack with its title and the records of the images that it fooled."""


def trials(results: Results) -> list[Trial]:
    """Clean cells with the finished attacks on the same ensemble and number of images; only cells with attacks."""
    cells = results.of(Detection)
    titles = attack_titles(results.cells)
    found = []
    for clean in cells:
        assert isinstance(clean.task, Detection)
        compared = clean.task.compared
        attacked = [
            cell
            for cell in cells
            if cell.task.attack
            and (cell.column, cell.ensemble.weights) == (clean.column, clean.ensemble.weights)
            and cell.images.samples == compared
        ]
        if compared and attacked:
            records = results.records[clean]
            named = [(cell, titles[cell.images.dataset, cell.task.name, cell.task.library]) for cell in attacked]
            fooled = [(cell, title, _fooled(results.records[cell])) for cell, title in named]
            found.append(Trial(clean, records.iloc[:compared], records.iloc[compared:], fooled))
    return found


def detection_table(results: Results) -> pd.DataFrame:
    """AUC, and the true positive rate at one threshold per false positive rate, fixed on held-out clean images.

    A detector also receives clean images that the ensemble misclassifies, so `auc` takes all clean images as negatives.
    `auc_right` takes only the correctly classified ones, because adversarial images were correctly classified before.
    """
    rows = []
    for trial in trials(results):
        right = trial.clean[was_right(trial.clean)]
        for cell, title, fooled in trial.fooled:
            for score in SCORES:
                area, low, high = auc_interval(trial.clean[score].to_numpy(), fooled[score].to_numpy())
                among_right = auc_interval(right[score].to_numpy(), fooled[score].to_numpy())
                row = {
                    "dataset": cell.images.dataset,
                    "defense": cell.ensemble.defense,
                    "attack": title,
                    "parameters": cell.task.parameters,
                    "seed": cell.conditions.seed,
                    "score": score,
                    "clean_images": len(trial.clean),
                    "adversarial_images": len(fooled),
                    "auc": round(area, 6),
                    "auc_low": round(low, 6),
                    "auc_high": round(high, 6),
                    "clean_right_images": len(right),
                    "auc_right": round(among_right[0], 6),
                    "auc_right_low": round(among_right[1], 6),
                    "auc_right_high": round(among_right[2], 6),
                }
                for rate in RATES:
                    threshold = np.quantile(trial.held_out[score], rate)
                    percent = f"{rate:.0%}".replace("%", "")
                    detected = float((fooled[score] < threshold).mean()) if len(fooled) else float("nan")
                    alarms = float((trial.clean[score] < threshold).mean())
                    row[f"true_positive_rate_at_{percent}"] = round(detected, 6)
                    row[f"false_positive_rate_at_{percent}"] = round(alarms, 6)
                rows.append(row)
    return pd.DataFrame(rows)


def _fooled(records: pd.DataFrame) -> pd.DataFrame:
    """Images that were correct before the attack and are misclassified after it."""
    return records[was_right(records) & (records["adversarial_prediction"] != records["label"])]


def auc_interval(clean: Scores, adversarial: Scores, confidence: float = 0.95) -> tuple[float, float, float]:
    """Area under the ROC curve, where clean images have the higher scores, with DeLong's interval."""
    if not len(clean) or not len(adversarial):
        return float("nan"), float("nan"), float("nan")
    both, within_clean, within_adversarial = map(_ranks, (np.concatenate([clean, adversarial]), clean, adversarial))
    over = (both[: len(clean)] - within_clean) / len(adversarial)  # share of adversarial scores below each clean one
    under = 1 - (both[len(clean) :] - within_adversarial) / len(clean)
    area = float(over.mean())
    variance = (np.var(over, ddof=1) / len(clean) if len(clean) > 1 else 0.0) + (
        np.var(under, ddof=1) / len(adversarial) if len(adversarial) > 1 else 0.0
    )
    half = special.ndtri(0.5 + confidence / 2) * variance**0.5
    return area, max(area - half, 0.0), min(area + half, 1.0)


def _ranks(values: Scores) -> Scores:
    """Ranks in ascending order, from 1; equal values share a rank."""
    return pd.Series(values).rank().to_numpy()


def roc(clean: Scores, adversarial: Scores) -> tuple[Scores, Scores]:
    """False and true positive rates; a score below the threshold counts as positive."""
    thresholds = np.concatenate([[-np.inf], np.unique(np.concatenate([clean, adversarial])), [np.inf]])
    false_positives = np.searchsorted(np.sort(clean), thresholds, side="left") / max(len(clean), 1)
    true_positives = np.searchsorted(np.sort(adversarial), thresholds, side="left") / max(len(adversarial), 1)
    return false_positives, true_positives
