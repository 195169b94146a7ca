"""A look at the attacks: clean images, adversarial ones and the difference, amplified."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmark.cells import Cell
from benchmark.reports.figures import Figure, canvas, slug, style
from benchmark.store import Store

IMAGES = 5


def strip_figures(store: Store, cells: list[Cell]) -> list[Figure]:
    """A figure per dataset and defense, of tier strict: a line per attack."""
    figures = []
    wanted = [cell for cell in cells if cell.evaluation == "whitebox" and cell.tier == "strict" and store.has(cell)]
    for dataset, defense in dict.fromkeys((cell.dataset, cell.defense) for cell in wanted):
        chosen: dict[str, Cell] = {}
        for cell in wanted:
            if (cell.dataset, cell.defense) == (dataset, defense):
                chosen.setdefault(cell.attack, cell)  # the first strength of each attack
        found = [(cell, store.read(cell)) for cell in chosen.values()]
        found = [(cell, records) for cell, records in found if "image_adversarial" in records]
        if found:
            figures.append(_strip(dataset, defense, found))
    return figures


def _strip(dataset: str, defense: str, found: list[tuple[Cell, pd.DataFrame]]) -> Figure:
    data = []
    with style():
        figure = canvas(0.72 * len(found) + 0.95, width=6.75)
        axes = figure.subplots(len(found) + 1, 2 * IMAGES, squeeze=False)
        for axis in axes.flat:
            axis.set_axis_off()
        for line, (cell, records) in enumerate(found, start=1):
            kept = records[records["image_adversarial"].notna()].head(IMAGES)
            for column, (index, row) in enumerate(kept.iterrows()):
                clean, adversarial = (_picture(row[f"image_{name}"], row["shape"]) for name in ("clean", "adversarial"))
                difference = adversarial.astype(float) - clean
                largest = float(np.abs(difference).max())
                if line == 1:
                    _show(axes[0, 2 * column], clean)
                    axes[0, 2 * column].set_title(f"class {int(row['label'])}")
                _show(axes[line, 2 * column], adversarial)
                _show(axes[line, 2 * column + 1], 0.5 + difference / max(2 * largest, 1e-12))
                votes = "/".join(str(int(vote)) for vote in row["members"]) if "members" in row else ""
                words = f"{int(row['adversarial_prediction'])}" + (f" ({votes})" if votes else "")
                axes[line, 2 * column].set_title(words, fontsize=6, pad=1.5)
                axes[line, 2 * column + 1].set_title(f"±{largest:.2g}", fontsize=6, pad=1.5)
                data.append(
                    {
                        "attack": f"{cell.attack}({cell.parameters})",
                        "image": index,
                        "label": int(row["label"]),
                        "prediction": int(row["adversarial_prediction"]),
                        "members": votes,
                        "largest_change": round(largest, 6),
                    }
                )
            axes[line, 0].text(
                -0.25, 0.5, f"{cell.attack}\n{cell.parameters.replace(',', chr(10))}", fontsize=6.5, ha="right",
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


def _picture(content: bytes, shape: list[int]) -> NDArray[np.floating]:
    return np.frombuffer(content, dtype=np.float16).reshape([int(size) for size in shape])
