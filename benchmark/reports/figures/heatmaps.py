"""Figure 3: how well adversarial images made on one member fool the others, as annotated heatmaps."""

from __future__ import annotations

import pandas as pd
from matplotlib.patches import Rectangle

from benchmark.reports.figures.drawing import Figure, canvas, seed_mark, slug, style


def transfer_figures(table: pd.DataFrame) -> list[Figure]:
    """A figure per dataset, attack and mode: the defenses side by side on one scale."""
    if table.empty:
        return []
    keys = ["dataset", "attack", "parameters", "mode", "seed"]
    return [_heatmaps(rows) for _, rows in table.groupby(keys, sort=False)]


def _heatmaps(rows: pd.DataFrame) -> Figure:
    dataset, attack, parameters, mode = (str(rows[key].iloc[0]) for key in ("dataset", "attack", "parameters", "mode"))
    defenses = list(dict.fromkeys(rows["defense"]))
    columns = min(len(defenses), 4)
    lines = -(-len(defenses) // columns)
    with style():
        figure = canvas(1.75 * lines + 0.35)
        axes = figure.subplots(lines, columns, squeeze=False)
        for axis in axes.flat[len(defenses) :]:
            axis.set_axis_off()
        for axis, defense in zip(axes.flat, defenses, strict=False):
            part = rows[rows["defense"] == defense]
            sources = list(dict.fromkeys(part["source"]))
            targets = list(dict.fromkeys(part["target"]))
            grid = part.pivot(index="source", columns="target", values="value").loc[sources, targets]
            picture = axis.imshow(grid.to_numpy(), cmap="cividis", vmin=0, vmax=100, aspect="auto")
            for i in range(len(sources)):
                for j in range(len(targets)):
                    value = grid.iloc[i, j]
                    ink = "white" if value < 58 else "black"
                    axis.text(j, i, f"{value:.1f}", ha="center", va="center", color=ink, fontsize=7)
                    if sources[i] == targets[j]:
                        axis.add_patch(Rectangle((j - 0.46, i - 0.44), 0.92, 0.88, fill=False, ec=ink, lw=1.4))
            axis.axvline(len(targets) - 1.5, color="white", lw=2.5)
            axis.set_xticks(range(len(targets)), [name.replace("ensemble", "ens.") for name in targets])
            axis.set_yticks(range(len(sources)), sources)
            axis.tick_params(length=0)
            axis.spines[:].set_visible(False)
            axis.set_title(defense)
        for axis in axes[:, 0]:
            axis.set_ylabel("made on")
        what = "accuracy, %" if mode == "untargeted" else "predicted as the target, %"
        figure.colorbar(picture, ax=axes, fraction=0.03, pad=0.02, label=what)
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
