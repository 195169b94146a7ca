"""Figure 3: how well adversarial images made on one member fool the others, as annotated heatmaps."""

from __future__ import annotations

import pandas as pd
from matplotlib.patches import Rectangle

from benchmark.cells import attack_titles
from benchmark.reports.figures import Figure, canvas, seed_mark, slug, style
from benchmark.statistics import accuracy_interval
from benchmark.store import Store


def transfer_table(store: Store) -> pd.DataFrame:
    """One row per source and target: accuracy (untargeted) or rate of hitting the target class (targeted), percent."""
    rows = []
    cells = [cell for cell in store.asked() if cell.evaluation == "transfer" and store.has(cell)]
    titles = attack_titles(cells)
    for cell in cells:
        records = store.read(cell)
        targeted = bool(cell.settings["targeted"])
        for target in [*(f"net{k + 1}" for k in range(cell.members)), "ensemble"]:
            wanted = records["target"] if targeted else records["label"]
            hits = int((records[f"prediction_{target}"] == wanted).sum())
            transferred, tried = _transferred(records, str(cell.settings["source"]), target, targeted)
            low, high = accuracy_interval(hits, len(records))
            rows.append(
                {
                    "dataset": cell.dataset,
                    "defense": cell.defense,
                    "attack": titles[cell.dataset, cell.attack, cell.library],
                    "parameters": cell.parameters.replace(",targeted=true", ""),
                    "mode": "targeted" if targeted else "untargeted",
                    "seed": cell.seed,
                    "source": cell.settings["source"],
                    "target": target,
                    "measure": "success" if targeted else "accuracy",
                    "value": round(100 * hits / len(records), 4),
                    "ci_low": round(100 * low, 4),
                    "ci_high": round(100 * high, 4),
                    "samples": len(records),
                    "transfer_rate": round(100 * transferred / tried, 4) if tried else None,
                    "transfer_tried": tried,
                }
            )
    return pd.DataFrame(rows)


def _transferred(records: pd.DataFrame, source: str, target: str, targeted: bool) -> tuple[int, int]:
    """Of the images both got right before and the source is now fooled on, how many fool the target too."""
    label = records["label"]
    right = (records[f"clean_{source}"] == label) & (records[f"clean_{target}"] == label)
    if targeted:
        fooled, also = (records[f"prediction_{name}"] == records["target"] for name in (source, target))
    else:
        fooled, also = (records[f"prediction_{name}"] != label for name in (source, target))
    return int((right & fooled & also).sum()), int((right & fooled).sum())


def transfer_figures(store: Store) -> list[Figure]:
    """A figure per dataset, attack and mode: the defenses side by side on one scale."""
    table = transfer_table(store)
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
