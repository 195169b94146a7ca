"""A look at the attacks: clean images, adversarial ones and the difference, amplified."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmark.cells.cell import Cell
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings.results import Results
from benchmark.reports.figures.drawing import Figure, canvas, slug, style

IMAGES = 5


def strip_figures(results: Results) -> list[Figure]:
    """A figure per dataset and defense, of tier strict: a line per attack; none where no pictures were kept."""
    figures = []
    wanted = [cell for cell in results.of(WhiteBox) if cell.task.tier == "strict"]
    for dataset, defense in dict.fromkeys((cell.images.dataset, cell.ensemble.defense) for cell in wanted):
        chosen: dict[str, Cell] = {}
        for cell in wanted:
            if (cell.images.dataset, cell.ensemble.defense) == (dataset, defense):
                chosen.setdefault(cell.task.name, cell)  # the first strength of each attack
        found = [line for cell in chosen.values() if (line := _line(results, cell))]
        if found:
            figures.append(_strip(dataset, defense, found))
    return figures


class Line(NamedTuple):
    """A line of the figure: an attack, and its images."""

    cell: Cell
    rows: NDArray[np.int64]
    """Rows of the test set."""
    clean: NDArray[np.floating]
    adversarial: NDArray[np.floating]
    labels: list[int]
    predictions: list[int]
    votes: list[str]
    """What the members predict."""


def _line(results: Results, cell: Cell) -> Line | None:
    pictures = results.pictures(cell)
    if pictures is None:
        return None
    index = pictures.index[:IMAGES]
    shown = pictures.clean
    if shown is None:
        kept = results.clean_pictures(cell.images.checksum)
        if kept is None:
            return None
        shown = kept[index]
    records = results.records[cell].set_index("index").loc[index]
    members = [] if pictures.members is None else pictures.members[:IMAGES].tolist()
    votes = ["/".join(map(str, votes)) for votes in members] or [""] * len(index)
    labels, predictions = records["label"].tolist(), records["adversarial_prediction"].tolist()
    return Line(cell, index, shown[:IMAGES], pictures.adversarial[:IMAGES], labels, predictions, votes)


def _strip(dataset: str, defense: str, found: list[Line]) -> Figure:
    data = []
    with style():
        figure = canvas(0.72 * len(found) + 0.95, width=6.75)
        axes = figure.subplots(len(found) + 1, 2 * IMAGES, squeeze=False)
        for axis in axes.flat:
            axis.set_axis_off()
        for line, part in enumerate(found, start=1):
            task = part.cell.task
            for column, index in enumerate(part.rows):
                clean, adversarial = part.clean[column], part.adversarial[column]
                difference = adversarial.astype(float) - clean
                largest = float(np.abs(difference).max())
                if line == 1:
                    _show(axes[0, 2 * column], clean)
                    axes[0, 2 * column].set_title(f"class {part.labels[column]}")
                _show(axes[line, 2 * column], adversarial)
                _show(axes[line, 2 * column + 1], 0.5 + difference / max(2 * largest, 1e-12))
                votes = part.votes[column]
                words = f"{part.predictions[column]}" + (f" ({votes})" if votes else "")
                axes[line, 2 * column].set_title(words, fontsize=6, pad=1.5)
                axes[line, 2 * column + 1].set_title(f"±{largest:.2g}", fontsize=6, pad=1.5)
                data.append(
                    {
                        "attack": f"{task.name}({task.parameters})",
                        "image": int(index),
                        "label": part.labels[column],
                        "prediction": part.predictions[column],
                        "members": votes,
                        "largest_change": round(largest, 6),
                    }
                )
            axes[line, 0].text(
                -0.25, 0.5, f"{task.name}\n{task.parameters.replace(',', chr(10))}", fontsize=6.5, ha="right",
                va="center", transform=axes[line, 0].transAxes,
            )  # fmt: skip
        axes[0, 0].text(-0.25, 0.5, "clean", fontsize=6.5, ha="right", va="center", transform=axes[0, 0].transAxes)
    words = (
        "Above each adversarial image, the ensemble's prediction and the members' in parentheses; beside it the "
        "difference from the clean image, amplified to full range, with its largest value."
    )
    title = f"A look at the attacks: {defense} on {dataset}, tier strict"
    return Figure(slug("attacks", dataset, defense), title, words, figure, pd.DataFrame(data))


def _show(axis: object, picture: NDArray[np.floating]) -> None:
    channels_last = np.clip(picture.astype(float).transpose(1, 2, 0), 0, 1)
    axis.imshow(  # type: ignore[attr-defined]
        channels_last.squeeze(-1) if channels_last.shape[-1] == 1 else channels_last,
        cmap="gray",
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
