"""Pictures of diversity: histogram (appendix B.3), members' features in the plane (Fig. 4), geometry (Fig. 1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from benchmark.findings import naming
from benchmark.findings.results import Results
from benchmark.reports import escaping
from benchmark.reports.figures.drawing import (
    SMALL,
    WIDTH,
    Figure,
    column_figure,
    frames,
    legend_below,
    legend_columns,
    legend_height,
    legend_width,
    look,
    seed_mark,
    sheet,
    slug,
    style,
    text_width,
)

STEP, LINE = 1.1, 1.24
"""Distance from one panel of bars to the next, in panel widths; distance between lines, in heights of a bar of 1."""
MOST_NAMED = 10
"""Most classes that have room for their names and have distinct colours."""
MIDDLE = 0.6
"""Position of the middle of a class's bars, in class widths."""

Points = NDArray[np.float64]
Found = list[tuple[Cell, pd.DataFrame]]


def diversity_figures(results: Results) -> list[Figure]:
    """The three pictures of every dataset and seed, if there are images for them."""
    groups: dict[tuple[str, int], list[tuple[Cell, pd.DataFrame]]] = {}
    for cell in results.of(Diversity):
        groups.setdefault((cell.images.dataset, cell.conditions.seed), []).append((cell, results.records[cell]))
    figures: list[Figure | None] = []
    for (dataset, seed), found in groups.items():
        class_name = partial(results.class_name, dataset)
        figures += [_histogram(dataset, seed_mark(seed), found)]
        figures += [draw(dataset, seed_mark(seed), found, class_name) for draw in (_geometry, _planes)]
    return [figure for figure in figures if figure]


def _histogram(dataset: str, mark: str, found: list[tuple[Cell, pd.DataFrame]]) -> Figure:
    low = min(float(records["led"].quantile(0.001)) for _, records in found)
    edges = np.linspace(min(np.floor(low), -1), 0, 61)
    medians = [(cell.ensemble.defense, float(records["led"].median())) for cell, records in found]
    labels = [f"{escaping.figure(naming.defense(defense))} (median {median:.2f})" for defense, median in medians]
    data = []
    with style():
        figure, axis = column_figure(1.7, labels)
        for position, (cell, records) in enumerate(found):
            share, _ = np.histogram(records["led"].clip(edges[0], edges[-1]), bins=edges)
            share = 100 * share / len(records)
            axis.stairs(share, edges, label=labels[position], lw=1.2, **look(position))
            columns = {"defense": cell.ensemble.defense, "from": edges[:-1], "to": edges[1:], "percent": share}
            data.append(pd.DataFrame(columns))
        axis.set_xlabel("log ensemble diversity, true label removed")
        axis.set_ylabel("test images (%)")
        axis.set_yscale("symlog", linthresh=10)
        axis.set_yticks(ticks := [0, 5, 10, 20, 50, 100], [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.set_ylim(0, 100)
        legend_below(figure, labels)
    told = "; ".join(f"{naming.defense(defense)}: {median:.2f}" for defense, median in medians)
    words = (
        f"Median of the log ensemble diversity. {told}. Further right is more diverse. "
        "Above 10 % the vertical scale is logarithmic."
    )
    title = f"Ensemble diversity on the test images of {naming.dataset(dataset)}"
    return Figure(slug("diversity", dataset, mark), title, words, figure, pd.concat(data, ignore_index=True).round(6))


def _geometry(dataset: str, mark: str, found: Found, class_name: Callable[[int], str]) -> Figure | None:
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
    names = [class_name(label) for label in range(classes)]
    labels = [int(found[0][1]["label"].iloc[index]) for index in chosen]
    heads = [f"image {index}, class {names[label]}" for index, label in zip(chosen, labels, strict=True)]
    figure = _draw_bars(
        [escaping.figure(naming.defense(cell.ensemble.defense)) for cell, _ in found], heads, names, bars
    )
    words = (
        "Predictions of each member without the true class, scaled to length 1. Bars of different members on the same "
        "classes: the members err alike; on different classes: they are diverse."
    )
    title = f"Non-maximal predictions of the members on {naming.dataset(dataset)}"
    return Figure(slug("geometry", dataset, mark), title, words, figure, pd.concat(data, ignore_index=True))


def _bars(left: NDArray[Any], foot: float, width: float, values: Points) -> Points:
    """Four corners of every bar that has a height."""
    left, values = left[values > 0], values[values > 0]
    x = np.stack([left, left, left + width, left + width], axis=1)
    y = foot - np.stack([0 * values, values, values, 0 * values], axis=1)
    return np.stack([x, y], axis=2)


def _draw_bars(defenses: list[str], heads: list[str], names: list[str], bars: dict[str, list[Points]]) -> Canvas:
    """A line per defense and a column per image; a unit is a class wide and a bar of 1 high."""
    classes, legend = len(names), [naming.classifier(member) for member in bars]
    names = [escaping.figure(name) for name in names] if classes <= MOST_NAMED else []
    upright = text_width(names) < 0.15
    named = 0.17 if upright else text_width(names) + 0.08
    left = 0.4 + text_width(defenses, 8)
    width = max(WIDTH, left + 4.5)
    across, down = (width - left) / (len(heads) * STEP * classes), 0.64
    columns = legend_columns(legend, 8)
    foot = (len(defenses) - 1) * LINE + 1
    height = 0.25 + down * foot + 0.25 + named + legend_height(-(-len(bars) // columns))
    corners = [
        (column * STEP * classes, line * LINE + 1) for line in range(len(defenses)) for column in range(len(heads))
    ]
    with style():
        figure, axis = sheet(height, width, left=left, top=0.25, unit=(across, down))
        for k, shapes in enumerate(bars.values()):
            path = Path.make_compound_path_from_polys(np.concatenate(shapes))
            axis.add_patch(PathPatch(path, facecolor=look(k)["color"], linewidth=0, label=legend[k]))
        frames(axis, corners, (1.04 * classes, 1.04), [number + MIDDLE for number in range(len(names))], (0, 1))
        for line, defense in enumerate(defenses):
            axis.text(-0.25 / across, line * LINE + 0.5, defense, ha="right", va="center")
            for value in (0, 1):
                axis.text(-0.1 / across, line * LINE + 1 - value, f"{value}", fontsize=SMALL, ha="right", va="center")
        for column, head in enumerate(heads):
            x = column * STEP * classes
            axis.text(x + classes / 2, -0.09 / down, head, ha="center")
            axis.text(x + classes / 2, foot + (0.19 + named) / down, "class", ha="center")
            for number, name in enumerate(names):
                place, turned = (x + number + MIDDLE, foot + 0.07 / down), 0 if upright else 90
                axis.text(*place, name, fontsize=SMALL, ha="center", va="top", rotation=turned)
        figure.legend(loc="lower right", ncols=columns, borderaxespad=0.3)
    return figure


def _planes(dataset: str, mark: str, found: Found, class_name: Callable[[int], str]) -> Figure | None:
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
    names = [escaping.figure(naming.defense(cell.ensemble.defense)) for cell, _ in found]
    classes = sorted({int(label) for plane in planes.values() for label in plane["label"]})
    legend = {label: escaping.figure(class_name(label)) for label in classes}
    figure = _draw_planes(names, planes, legend if len(classes) <= MOST_NAMED else {})
    words = (
        "t-SNE of the pooled features of each member, a colour per class. Compare how far each member pulls the same "
        "classes apart; distances between clusters mean little."
    )
    title = f"Features of the members on {naming.dataset(dataset)}"
    return Figure(slug("features", dataset, mark), title, words, figure, pd.concat(planes.values(), ignore_index=True))


def _draw_planes(defenses: list[str], planes: dict[tuple[int, int], pd.DataFrame], legend: dict[int, str]) -> Canvas:
    """A line per defense and a column per member; a unit is a panel and the gap to the next."""
    members = max(k for _, k in planes) + 1
    across, down = 1.65, max(1.45, text_width(defenses, 8) + 0.1)
    with style():
        names = list(legend.values())
        width = max(0.22 + across * members, legend_width(names) + 0.1 if legend else 0.0)
        columns = legend_columns(names, 5, width) if legend else 1
        height = 0.22 + down * len(defenses) + (legend_height(-(-len(legend) // columns)) + 0.05) * bool(legend)
        figure, axis = sheet(height, width, left=0.22, top=0.22, unit=(across, down))
        boxes = [[(k, line), (k + 0.95, line), (k + 0.95, line + 0.95), (k, line + 0.95)] for line, k in planes]
        axis.add_collection(PolyCollection(boxes, facecolors="none", edgecolors="black", linewidths=0.6), autolim=False)
        for line, defense in enumerate(defenses):
            axis.text(-0.06 / across, line + 0.475, defense, rotation=90, ha="right", va="center")
        for k in range(members):
            axis.text(k + 0.475, -0.07 / down, naming.classifier(member_name(k)), ha="center")
        x = np.concatenate([k + 0.95 * _spread(plane["x"]) for (_, k), plane in planes.items()])
        y = np.concatenate([line + 0.95 * (1 - _spread(plane["y"])) for (line, _), plane in planes.items()])
        colours = np.concatenate([plane["label"] for plane in planes.values()]) % 10
        for colour in range(10):  # one marker plot per colour takes a third of the time of scatter
            here = colours == colour
            axis.plot(x[here], y[here], "o", color=f"C{colour}", ms=1.6, mew=0, label=legend.get(colour, "_"))
        if legend:
            figure.legend(loc="lower center", ncols=columns, borderaxespad=0.2, markerscale=3)
    return figure


def _spread(values: pd.Series[float]) -> Points:
    """The values scaled to [0, 1], with a margin."""
    low, high = values.min(), values.max()
    return np.asarray(0.05 + 0.9 * (values - low) / max(high - low, 1e-12))
