"""Pictures of diversity: histogram (appendix B.3), members' features in the plane (Fig. 4), geometry (Fig. 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from benchmark.cells.cell import Cell
from benchmark.evaluations.diversity import SHOWN, Diversity
from benchmark.evaluations.task import member_name
from benchmark.findings.results import Results
from benchmark.reports import escaping
from benchmark.reports.figures.drawing import (
    SMALL,
    WIDTH,
    Figure,
    canvas,
    frames,
    legend_columns,
    legend_height,
    legend_width,
    look,
    margins,
    seed_mark,
    sheet,
    slug,
    style,
    text_width,
)

STEP, LINE = 1.1, 1.24
"""From one panel of bars to the next, in panels, and from one line to the next, where a bar of 1 is 1 high."""
MIDDLE = 0.6
"""Where the middle of a class's bars is, in classes."""

Points = NDArray[np.float64]


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
    medians = [(cell.ensemble.defense, float(records["led"].median())) for cell, records in found]
    labels = [f"{escaping.figure(defense)} (median {median:.2f})" for defense, median in medians]
    data = []
    with style():
        figure = canvas(max(2.3, legend_height(len(labels))))
        margins(figure, left=0.5, right=0.12 + legend_width(labels))
        axis = figure.subplots()
        for position, (cell, records) in enumerate(found):
            share, _ = np.histogram(records["led"].clip(edges[0], edges[-1]), bins=edges)
            share = 100 * share / len(records)
            axis.stairs(share, edges, label=labels[position], lw=1.2, **look(position))
            columns = {"defense": cell.ensemble.defense, "from": edges[:-1], "to": edges[1:], "percent": share}
            data.append(pd.DataFrame(columns))
        axis.set_xlabel("log ensemble diversity, true label removed")
        axis.set_ylabel("test images, %")
        axis.set_yscale("symlog", linthresh=10)
        axis.set_yticks(ticks := [0, 5, 10, 20, 50, 100], [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.set_ylim(0, 100)
        figure.legend(loc="upper right", borderaxespad=0.3)
    told = ", ".join(f"{defense} {median:.2f}" for defense, median in medians)
    words = f"Median of the log ensemble diversity: {told}. Above 10 % the scale is logarithmic."
    title = f"Ensemble diversity on the test set of {dataset}"
    return Figure(slug("diversity", dataset, mark), title, words, figure, pd.concat(data, ignore_index=True).round(6))


def _geometry(dataset: str, mark: str, found: list[tuple[Cell, pd.DataFrame]]) -> Figure | None:
    """Normalised non-maximal predictions of the members for the first images that every ensemble gets right."""
    shown = min(SHOWN, *(len(records) for _, records in found))
    right = np.logical_and.reduce([records["correct"].to_numpy()[:shown] for _, records in found])
    chosen = [int(index) for index in np.flatnonzero(right)[:3]]
    if not chosen:
        return None
    classes = max(len(records[f"probabilities_{member_name(0)}"].iloc[chosen[0]]) for _, records in found)
    bars: dict[str, list[Points]] = {}
    data = []
    for line, (cell, records) in enumerate(found):
        for column, index in enumerate(chosen):
            label = int(records["label"].iloc[index])
            for k in range(cell.ensemble.members):
                prediction = np.array(records[f"probabilities_{member_name(k)}"].iloc[index], dtype=float)
                prediction[label] = 0.0
                prediction /= np.linalg.norm(prediction)
                share = 0.8 / cell.ensemble.members
                place = column * STEP * classes + np.arange(len(prediction)) + MIDDLE - 0.4 + k * share
                bars.setdefault(member_name(k), []).append(_bars(place, line * LINE + 1, share, prediction))
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
    heads = [f"image {index}, class {int(found[0][1]['label'].iloc[index])}" for index in chosen]
    figure = _draw_bars([escaping.figure(cell.ensemble.defense) for cell, _ in found], heads, classes, bars)
    words = "Bars of different members on the same classes mean alike predictions; on different classes, diverse ones."
    title = f"Normalised non-maximal predictions of the members on {dataset}"
    return Figure(slug("geometry", dataset, mark), title, words, figure, pd.concat(data, ignore_index=True))


def _bars(left: NDArray[Any], foot: float, width: float, values: Points) -> Points:
    """Four corners of every bar that has a height."""
    left, values = left[values > 0], values[values > 0]
    x = np.stack([left, left, left + width, left + width], axis=1)
    y = foot - np.stack([0 * values, values, values, 0 * values], axis=1)
    return np.stack([x, y], axis=2)


def _draw_bars(defenses: list[str], heads: list[str], classes: int, bars: dict[str, list[Points]]) -> Canvas:
    """A line per defense and a column per image; a unit is a class wide and a bar of 1 high."""
    left = 0.4 + text_width(defenses, 8)
    width = max(WIDTH, left + 4.5)
    across, down = (width - left) / (len(heads) * STEP * classes), 0.64
    columns = legend_columns(list(bars), 8)
    foot = (len(defenses) - 1) * LINE + 1
    height = 0.25 + down * foot + 0.42 + legend_height(-(-len(bars) // columns))
    corners = [
        (column * STEP * classes, line * LINE + 1) for line in range(len(defenses)) for column in range(len(heads))
    ]
    numbers = range(classes if classes <= 10 else 0)
    with style():
        figure, axis = sheet(height, width, left=left, top=0.25, unit=(across, down))
        for k, (member, shapes) in enumerate(bars.items()):
            path = Path.make_compound_path_from_polys(np.concatenate(shapes))
            axis.add_patch(PathPatch(path, facecolor=look(k)["color"], linewidth=0, label=member))
        frames(axis, corners, (1.04 * classes, 1.04), [number + MIDDLE for number in numbers], (0, 1))
        for line, defense in enumerate(defenses):
            axis.text(-0.25 / across, line * LINE + 0.5, defense, ha="right", va="center")
            for value in (0, 1):
                axis.text(-0.1 / across, line * LINE + 1 - value, f"{value}", fontsize=SMALL, ha="right", va="center")
        for column, head in enumerate(heads):
            x = column * STEP * classes
            axis.text(x + classes / 2, -0.09 / down, head, ha="center")
            axis.text(x + classes / 2, foot + 0.36 / down, "class", ha="center")
            for number in numbers:
                axis.text(x + number + MIDDLE, foot + 0.19 / down, f"{number}", fontsize=SMALL, ha="center")
        figure.legend(loc="lower right", ncols=columns, borderaxespad=0.3)
    return figure


def _planes(dataset: str, mark: str, found: list[tuple[Cell, pd.DataFrame]]) -> Figure | None:
    found = [(cell, records) for cell, records in found if f"tsne_{member_name(0)}" in records]
    if not found:
        return None
    planes = {}
    for line, (cell, records) in enumerate(found):
        for k in range(cell.ensemble.members):
            plane = records[f"tsne_{member_name(k)}"].dropna()
            if plane.empty:
                continue
            points = np.stack([np.asarray(point, dtype=float) for point in plane])
            planes[line, k] = pd.DataFrame(
                {
                    "defense": cell.ensemble.defense,
                    "member": member_name(k),
                    "image": plane.index,
                    "label": records["label"].loc[plane.index].to_numpy(),
                    "x": points[:, 0].round(4),
                    "y": points[:, 1].round(4),
                }
            )
    figure = _draw_planes([escaping.figure(cell.ensemble.defense) for cell, _ in found], planes)
    words = "t-SNE of the pooled features of each member, a colour per class."
    title = f"Features of the members on {dataset}"
    return Figure(slug("features", dataset, mark), title, words, figure, pd.concat(planes.values(), ignore_index=True))


def _draw_planes(defenses: list[str], planes: dict[tuple[int, int], pd.DataFrame]) -> Canvas:
    """A line per defense and a column per member; a unit is a panel and the gap to the next."""
    members = max(k for _, k in planes) + 1
    across, down = 1.65, max(1.45, text_width(defenses, 8) + 0.1)
    with style():
        height, width = 0.22 + down * len(defenses), 0.22 + across * members
        figure, axis = sheet(height, width, left=0.22, top=0.22, unit=(across, down))
        boxes = [[(k, line), (k + 0.95, line), (k + 0.95, line + 0.95), (k, line + 0.95)] for line, k in planes]
        axis.add_collection(PolyCollection(boxes, facecolors="none", edgecolors="black", linewidths=0.6), autolim=False)
        for line, defense in enumerate(defenses):
            axis.text(-0.06 / across, line + 0.475, defense, rotation=90, ha="right", va="center")
        for k in range(members):
            axis.text(k + 0.475, -0.07 / down, member_name(k), ha="center")
        x = np.concatenate([k + 0.95 * _spread(plane["x"]) for (_, k), plane in planes.items()])
        y = np.concatenate([line + 0.95 * (1 - _spread(plane["y"])) for (line, _), plane in planes.items()])
        colours = np.concatenate([plane["label"] for plane in planes.values()]) % 10
        for colour in range(10):  # a marker for all points of a colour takes a third of what scatter does
            axis.plot(x[colours == colour], y[colours == colour], "o", color=f"C{colour}", ms=1.6, mew=0)
    return figure


def _spread(values: pd.Series[float]) -> Points:
    """Between 0 and 1, with a margin."""
    low, high = values.min(), values.max()
    return np.asarray(0.05 + 0.9 * (values - low) / max(high - low, 1e-12))
