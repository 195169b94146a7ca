"""Figure 3: how well adversarial images made on one member fool the others, as annotated heatmaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.markers import TICKRIGHT
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from benchmark.findings import naming
from benchmark.reports import escaping
from benchmark.reports.figures.drawing import SMALL, WIDTH, Figure, seed_mark, sheet, slug, style, text_width

HEAD, FOOT, HIGH, NAMED = 0.24, 0.22, 1.3, 0.2
"""In inches: above a heatmap, below it, the heatmap itself, and the name of the x axis."""
ROUND = 5.0
"""The scale begins and ends at a multiple of this, in percent."""


@dataclass(frozen=True)
class _Scale:
    """The colour scale of the values: it spans the off-diagonal values, so that their differences are visible."""

    low: float
    high: float

    @property
    def colours(self) -> dict[str, Any]:
        return {"cmap": "cividis", "vmin": self.low, "vmax": self.high}

    def ink(self, value: float) -> str:
        """The text colour of a value on its own background."""
        return "white" if value < self.low + 0.58 * (self.high - self.low) else "black"


def _scale(rows: pd.DataFrame) -> _Scale:
    off = rows["value"][rows["source"] != rows["target"]]
    values = off if len(off) else rows["value"]
    low, high = float(values.min()), float(values.max())
    low, high = ROUND * np.floor(low / ROUND), ROUND * np.ceil(high / ROUND)
    return _Scale(float(low), float(max(high, low + 2 * ROUND)))


def transfer_figures(table: pd.DataFrame) -> list[Figure]:
    """A figure per dataset, attack and mode: the defenses side by side on one scale."""
    if table.empty:
        return []
    keys = ["dataset", "attack", "parameters", "mode", "seed"]
    return [_heatmaps(rows) for _, rows in table.groupby(keys, sort=False)]


def _heatmaps(rows: pd.DataFrame) -> Figure:
    dataset, attack, parameters, mode = (str(rows[key].iloc[0]) for key in ("dataset", "attack", "parameters", "mode"))
    defenses = list(dict.fromkeys(rows["defense"]))
    what = "accuracy (%)" if mode == "untargeted" else "predicted as target (%)"
    grids = {naming.defense(defense): _grid(rows[rows["defense"] == defense]) for defense in defenses}
    figure = _draw(grids, what, _scale(rows))
    off = rows[(rows["source"] != rows["target"]) & (rows["target"] != "ensemble")].groupby("defense", sort=False)
    means = "; ".join(f"{naming.defense(str(name))}: {values['value'].mean():.1f} %" for name, values in off)
    rates = "; ".join(f"{naming.defense(str(name))}: {values['transfer_rate'].mean():.1f} %" for name, values in off)
    better = "Higher is better" if mode == "untargeted" else "Lower is better"
    measured = "Accuracy" if mode == "untargeted" else "Share predicted as the target class"
    words = (
        f"{measured} of each target model on images made on each source model. {better}. "
        f"Mean over pairs of different members. {means}. Transfer rate (images that fool their source and also fool "
        f"another member that was right before). {rates}. The framed diagonal is the source itself; ens. is the "
        "ensemble; the colours span the other values."
    )
    attacked = naming.attack(attack, parameters)
    title = f"Transfer between members on {naming.dataset(dataset)}: {attacked}, {mode}"
    name = slug("transfer", dataset, attack, parameters, mode, seed_mark(int(rows["seed"].iloc[0])))
    return Figure(name, title, words, figure, rows)


def _grid(rows: pd.DataFrame) -> pd.DataFrame:
    """A line per source, a column per target."""
    sources, targets = (list(dict.fromkeys(rows[name])) for name in ("source", "target"))
    return rows.pivot(index="source", columns="target", values="value").loc[sources, targets]


def _draw(grids: dict[str, pd.DataFrame], what: str, scale: _Scale) -> Canvas:
    """Heatmaps on one sheet, in units of a cell; the first has its first cell around the origin."""
    high, wide = (max(grid.shape[axis] for grid in grids.values()) for axis in (0, 1))
    named = 0.12 + text_width(map(_short, (source for grid in grids.values() for source in grid.index)))
    alike = len({tuple(grid.index) for grid in grids.values()}) == 1  # then only the first heatmap needs names
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
        height = lines * (HEAD + HIGH + FOOT) + NAMED
        figure, axis = sheet(height, width, left=left + across / 2, top=HEAD + down / 2, unit=(across, down))
        for (x, y), (defense, grid) in zip(places, grids.items(), strict=True):
            _panel(axis, x, y, grid, scale)
            middle = x + (len(grid.columns) - 1) / 2
            axis.text(middle, y - 0.5 - 0.07 / down, escaping.figure(defense), ha="center")
            for j, target in enumerate(grid.columns):
                axis.text(x + j, y + len(grid) - 0.5 + 0.15 / down, _short(target), fontsize=SMALL, ha="center")
            for i, source in enumerate(grid.index if x == 0 or not alike else []):
                axis.text(x - 0.5 - 0.05 / across, y + i, _short(source), fontsize=SMALL, ha="right", va="center")
            if x == 0:
                beside = -0.5 - named / across
                axis.text(beside, y + (len(grid) - 1) / 2, "source model", rotation=90, ha="right", va="center")
            if y == places[-1][1]:
                axis.text(middle, y + len(grid) - 0.5 + (FOOT + 0.12) / down, "target model", ha="center")
        _bar(axis, (width - left - right + 0.1) / across - 0.5, places[-1][1] + high - 0.5, across, what, scale)
    return figure


def _short(name: str) -> str:
    """A member by its number, so that many fit; the ensemble by its name."""
    return naming.classifier(name).removeprefix("member ").replace("ensemble", "ens.")


def _panel(axis: Axes, x: float, y: float, grid: pd.DataFrame, scale: _Scale) -> None:
    """A heatmap with its numbers; the source itself is framed, the ensemble stands apart."""
    values = grid.to_numpy(dtype=float)
    high, wide = values.shape
    edges = np.arange(wide + 1) + x - 0.5, np.arange(high + 1) + y - 0.5
    axis.pcolormesh(*edges, values, **scale.colours, edgecolors="face", linewidth=0.3)
    axis.plot([x + wide - 1.5] * 2, [y - 0.5, y + high - 0.5], color="white", lw=2.5)
    for (i, j), value in np.ndenumerate(values):
        ink = scale.ink(value)
        axis.text(x + j, y + i, f"{value:.1f}", ha="center", va="center", color=ink, fontsize=6.5)
        if grid.index[i] == grid.columns[j]:
            corner = x + j - 0.4, y + i - 0.4
            axis.add_patch(Rectangle(corner, 0.8, 0.8, fill=False, ec=ink, lw=1.4, zorder=3))


def _bar(axis: Axes, x: float, bottom: float, across: float, what: str, scale: _Scale) -> None:
    """The scale of all heatmaps, from the top of the first to the bottom of the last."""
    right = x + 0.12 / across
    shades = np.linspace(scale.high, scale.low, 256)[:, None]
    axis.imshow(shades, **scale.colours, extent=(x, right, bottom, -0.5), aspect="auto")
    axis.text(right + 0.42 / across, (bottom - 0.5) / 2, what, rotation=90, ha="center", va="center")
    ticks = np.asarray(MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(scale.low, scale.high))
    ticks = ticks[(ticks >= scale.low) & (ticks <= scale.high)]
    places = bottom - (ticks - scale.low) / (scale.high - scale.low) * (bottom + 0.5)
    axis.plot([right] * len(ticks), places, color="black", ls="none", marker=TICKRIGHT, ms=3.5, mew=0.6)
    for tick, y in zip(ticks, places, strict=True):
        axis.text(right + 0.08 / across, y, f"{tick:g}", fontsize=SMALL, va="center")
