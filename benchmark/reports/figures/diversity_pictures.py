"""Pictures of diversity: histogram (appendix B.3), members' features in the plane (Fig. 4), geometry (Fig. 1)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmark.cells.cell import Cell
from benchmark.evaluations.diversity import SHOWN, Diversity
from benchmark.evaluations.task import member_name
from benchmark.findings.results import Results
from benchmark.reports.figures.drawing import Figure, canvas, look, seed_mark, slug, style


def diversity_figures(results: Results) -> list[Figure]:
    """The three pictures of every dataset and seed, as far as there are images for them."""
    groups: dict[tuple[str, int], list[tuple[Cell, pd.DataFrame]]] = {}
    for cell in results.of(Diversity):
        groups.setdefault((cell.images.dataset, cell.conditions.seed), []).append((cell, results.records[cell]))
    figures: list[Figure | None] = []
    for (dataset, seed), found in groups.items():
        figures += [draw(dataset, seed_mark(seed), found) for draw in (_histogram, _geometry, _planes)]
    return [figure for figure in figures if figure]


def _histogram(dataset: str, mark: str, found: list[tuple[Cell, pd.DataFrame]]) -> Figure:
    low = min(float(records["led"].quantile(0.001)) for _, records in found)
    edges = np.linspace(min(np.floor(low), -1), 0, 61)
    data, medians = [], []
    with style():
        figure = canvas(2.3)
        axis = figure.subplots()
        for position, (cell, records) in enumerate(found):
            median = float(records["led"].median())
            medians.append(f"{cell.ensemble.defense} {median:.2f}")
            share, _ = np.histogram(records["led"].clip(edges[0], edges[-1]), bins=edges)
            share = 100 * share / len(records)
            axis.stairs(share, edges, label=f"{cell.ensemble.defense} (median {median:.2f})", lw=1.2, **look(position))
            data.append(
                pd.DataFrame({"defense": cell.ensemble.defense, "from": edges[:-1], "to": edges[1:], "percent": share})
            )
        axis.set_xlabel("log ensemble diversity, true label removed")
        axis.set_ylabel("test images, %")
        axis.set_yscale("symlog", linthresh=10)
        axis.set_yticks(ticks := [0, 5, 10, 20, 50, 100], [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.set_ylim(0, 100)
        figure.legend(loc="outside right upper", frameon=False)
    words = "Median of the log ensemble diversity: " + ", ".join(medians) + ". Above 10 % the scale is logarithmic."
    title = f"Ensemble diversity on the test set of {dataset}"
    return Figure(slug("diversity", dataset, mark), title, words, figure, pd.concat(data, ignore_index=True).round(6))


def _geometry(dataset: str, mark: str, found: list[tuple[Cell, pd.DataFrame]]) -> Figure | None:
    """Normalised non-maximal predictions of the members for the first images that every ensemble gets right."""
    shown = min(SHOWN, *(len(records) for _, records in found))
    right = np.logical_and.reduce([records["correct"].to_numpy()[:shown] for _, records in found])
    chosen = [int(index) for index in np.flatnonzero(right)[:3]]
    if not chosen:
        return None
    data = []
    with style():
        figure = canvas(0.85 * len(found) + 0.5)
        axes = figure.subplots(len(found), len(chosen), squeeze=False, sharex=True, sharey=True)
        for line, (cell, records) in zip(axes, found, strict=True):
            for axis, index in zip(line, chosen, strict=False):
                label = int(records["label"].iloc[index])
                for k in range(cell.ensemble.members):
                    prediction = np.array(records[f"probabilities_{member_name(k)}"].iloc[index], dtype=float)
                    prediction[label] = 0.0
                    prediction /= np.linalg.norm(prediction)
                    place = (
                        np.arange(len(prediction)) + (k - (cell.ensemble.members - 1) / 2) * 0.8 / cell.ensemble.members
                    )
                    axis.bar(
                        place, prediction, 0.8 / cell.ensemble.members, color=look(k)["color"], label=member_name(k)
                    )
                    data.append(
                        pd.DataFrame(
                            {
                                "defense": cell.ensemble.defense,
                                "image": index,
                                "label": label,
                                "member": member_name(k),
                                "class": range(len(prediction)),
                                "value": prediction.round(6),
                            }
                        )
                    )
                axis.set_xticks(range(len(prediction)) if len(prediction) <= 10 else [])
                axis.set_yticks([0, 1])
            line[0].set_ylabel(cell.ensemble.defense, rotation=0, ha="right", va="center")
        for axis, index in zip(axes[0], chosen, strict=False):
            axis.set_title(f"image {index}, class {int(found[0][1]['label'].iloc[index])}")
        for axis in axes[-1]:
            axis.set_xlabel("class")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower right", ncols=len(labels), frameon=False)
    words = "Bars of different members on the same classes mean alike predictions; on different classes, diverse ones."
    title = f"Normalised non-maximal predictions of the members on {dataset}"
    return Figure(slug("geometry", dataset, mark), title, words, figure, pd.concat(data, ignore_index=True))


def _planes(dataset: str, mark: str, found: list[tuple[Cell, pd.DataFrame]]) -> Figure | None:
    found = [(cell, records) for cell, records in found if f"tsne_{member_name(0)}" in records]
    if not found:
        return None
    members = max(cell.ensemble.members for cell, _ in found)
    data = []
    with style():
        figure = canvas(1.55 * len(found) + 0.2, width=1.6 * members + 0.9)
        axes = figure.subplots(len(found), members, squeeze=False)
        for line, (cell, records) in zip(axes, found, strict=True):
            for k, axis in enumerate(line):
                axis.set_xticks([])
                axis.set_yticks([])
                plane = (
                    records[f"tsne_{member_name(k)}"].dropna() if k < cell.ensemble.members else pd.Series(dtype=object)
                )
                if plane.empty:
                    axis.set_axis_off()
                    continue
                points = np.stack([np.asarray(point, dtype=float) for point in plane])
                labels = records["label"].loc[plane.index].to_numpy()
                axis.scatter(*points.T, c=labels, cmap="tab10", s=2.5, linewidths=0, rasterized=False)
                axis.spines[:].set_visible(True)
                data.append(
                    pd.DataFrame(
                        {
                            "defense": cell.ensemble.defense,
                            "member": member_name(k),
                            "image": plane.index,
                            "label": labels,
                            "x": points[:, 0].round(4),
                            "y": points[:, 1].round(4),
                        }
                    )
                )
            line[0].set_ylabel(cell.ensemble.defense)
        for k, axis in enumerate(axes[0]):
            axis.set_title(member_name(k))
    words = "t-SNE of the pooled features of each member, a colour per class."
    title = f"Features of the members on {dataset}"
    return Figure(slug("features", dataset, mark), title, words, figure, pd.concat(data, ignore_index=True))
