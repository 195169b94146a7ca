"""The ROC figure: can a score of the ensemble's own prediction tell adversarial images from clean ones?"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from benchmark.cells import Cell, attack_titles
from benchmark.evaluations.detection import SCORES
from benchmark.reports.figures import Figure, canvas, look, seed_mark, slug, style
from benchmark.store import Store

Scores = NDArray[np.float64]


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
        clean_records = store.read(clean_cell)
        clean = clean_records.iloc[: int(clean_cell.settings["compared"])]
        curves = []
        with style():
            figure = canvas(2.0)
            axes = figure.subplots(1, len(SCORES), sharey=True)
            for axis, score in zip(axes, SCORES, strict=True):
                axis.plot([0, 1], [0, 1], color="0.7", lw=0.8)
                for position, cell in enumerate(attacked):
                    fooled = _fooled(store.read(cell))
                    label = f"{titles[cell.dataset, cell.attack, cell.library]}({cell.parameters})"
                    false_alarms, caught = _roc(clean[score].to_numpy(), fooled[score].to_numpy())
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
        compared = int(clean_cell.settings["compared"])
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
        figures.append(Figure(name, title, words + ".", figure, pd.concat(curves, ignore_index=True)))
    return figures


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
