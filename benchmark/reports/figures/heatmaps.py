"""Figure 3: how well adversarial images made on one member fool the others, as annotated heatmaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.markers import TICKRIGHT
from matplotlib.patches import Rectangle

from benchmark.reports import escaping
from benchmark.reports.figures.drawing import SMALL, WIDTH, Figure, seed_mark, sheet, slug, style, text_width

HEAD, FOOT, HIGH = 0.24, 0.22, 1.3
"""In inches: above a heatmap, below it, the heatmap itself."""
SCALE: dict[str, Any] = {"cmap": "cividis", "vmin": 0, "vmax": 100}


def transfer_figures(table: pd.DataFrame) -> list[Figure]:
    """A figure per dataset, attack and mode: the defenses side by side on one scale."""
    if table.empty:
        return []
    keys = ["dataset", "attack", "parameters", "mode", "seed"]
    return [_heatmaps(rows) for _, rows in table.groupby(keys, sort=False)]


def _heatmaps(rows: pd.DataFrame) -> Figure:
    dataset, attack, parameters, mode = (str(rows[key].iloc[0]) for key in ("dataset", "attack", "parameters", "mode"))
    defenses = list(dict.fromkeys(rows["defense"]))
    what = "accuracy, %" if mode == "untargeted" else "predicted as the target, %"
    figure = _draw({defense: _grid(rows[rows["defense"] == defense]) for defense in defenses}, what)
    off = rows[(rows["source"] != rows["target"]) & (rows["target"] != "ensemble")].groupby("defense", sort=False)
    means = ", ".join(f"{defense} {values['value'].mean():.1f}" for defense, values in off)
    rates = ", ".join(f"{defense} {values['transfer_rate'].mean():.1f}" for defense, values in off)
    words = (
        f"{what[0].upper()}{what[1:]}. Mean over pairs of different members: {means}. "
        f"Share of images that fool their source and also fool another member which was right before: {rates} %."
    )
    title = f"Transfer between members on {dataset}: {attack}({parameters}), {mode}"
    name = slug("transfer", dataset, attack, parameters, mode, seed_mark(int(rows["seed"].iloc[0])))
    return Figure(name, title, words, figure, rows)


def _grid(rows: pd.DataFrame) -> pd.DataFrame:
    """A line per source, a column per target."""
    sources, targets = (list(dict.fromkeys(rows[name])) for name in ("source", "target"))
    return rows.pivot(index="source", columns="target", values="value").loc[sources, targets]


def _draw(grids: dict[str, pd.DataFrame], what: str) -> Canvas:
    """Heatmaps on one sheet, in units of a cell; the first has its first cell around the origin."""
    high, wide = (max(grid.shape[axis] for grid in grids.values()) for axis in (0, 1))
    named = 0.12 + text_width(source for grid in grids.values() for source in grid.index)
    alike = len({tuple(grid.index) for grid in grids.values()}) == 1  # then the first column has the names for all
    gap = 0.12 if alike else named
    left, right, least = named + 0.18, 0.75, max(text_width(map(escaping.figure, grids), 8), 0.29 * wide)
    columns = max(1, min(len(grids), 4, int((WIDTH - left - right + gap) / (least + gap))))
    lines = -(-len(grids) // columns)
    width = max(WIDTH, left + right + least)
    across, down = ((width - left - right + gap) / columns - gap) / wide, HIGH / high
    places = [
        (number % columns * (wide + gap / across), number // columns * (high + (HEAD + FOOT) / down))
        for number in range(len(grids))
    ]
    with style():
        height = lines * (HEAD + HIGH + FOOT)
        figure, axis = sheet(height, width, left=left + across / 2, top=HEAD + down / 2, unit=(across, down))
        for (x, y), (defense, grid) in zip(places, grids.items(), strict=True):
            _panel(axis, x, y, grid)
            axis.text(x + (len(grid.columns) - 1) / 2, y - 0.5 - 0.07 / down, escaping.figure(defense), ha="center")
            for j, target in enumerate(grid.columns):
                foot = y + len(grid) - 0.5 + 0.15 / down
                axis.text(x + j, foot, target.replace("ensemble", "ens."), fontsize=SMALL, ha="center")
            for i, source in enumerate(grid.index if x == 0 or not alike else []):
                axis.text(x - 0.5 - 0.05 / across, y + i, source, fontsize=SMALL, ha="right", va="center")
            if x == 0:
                axis.text(
                    -0.5 - named / across, y + (len(grid) - 1) / 2, "made on", rotation=90, ha="right", va="center"
                )
        _bar(axis, (width - left - right + 0.1) / across - 0.5, places[-1][1] + high - 0.5, across, what)
    return figure


def _panel(axis: Axes, x: float, y: float, grid: pd.DataFrame) -> None:
    """A heatmap with its numbers; the source itself is framed, the ensemble stands apart."""
    values = grid.to_numpy(dtype=float)
    high, wide = values.shape
    edges = np.arange(wide + 1) + x - 0.5, np.arange(high + 1) + y - 0.5
    axis.pcolormesh(*edges, values, **SCALE, edgecolors="face", linewidth=0.3)
    axis.plot([x + wide - 1.5] * 2, [y - 0.5, y + high - 0.5], color="white", lw=2.5)
    for (i, j), value in np.ndenumerate(values):
        ink = "white" if value < 58 else "black"
        axis.text(x + j, y + i, f"{value:.1f}", ha="center", va="center", color=ink, fontsize=6.5)
        if grid.index[i] == grid.columns[j]:
            corner = x + j - 0.46, y + i - 0.44
            axis.add_patch(Rectangle(corner, 0.92, 0.88, fill=False, ec=ink, lw=1.4, zorder=3))


def _bar(axis: Axes, x: float, bottom: float, across: float, what: str) -> None:
    """The scale of all heatmaps, from the top of the first to the bottom of the last."""
    right = x + 0.12 / across
    axis.imshow(np.linspace(100, 0, 256)[:, None], **SCALE, extent=(x, right, bottom, -0.5), aspect="auto")
    axis.text(right + 0.42 / across, (bottom - 0.5) / 2, what, rotation=90, ha="center", va="center")
    ticks = np.linspace(bottom, -0.5, 6)
    axis.plot([right] * 6, ticks, color="black", ls="none", marker=TICKRIGHT, ms=3.5, mew=0.6)
    for number, y in enumerate(ticks):
        axis.text(right + 0.08 / across, y, f"{20 * number}", fontsize=SMALL, va="center")
