"""Security curves: accuracy against the strength of an attack, with its interval; they must fall to nothing."""

from __future__ import annotations

from typing import Any

import pandas as pd

from benchmark.cells import Cell
from benchmark.reports.figures import Figure, canvas, legend_height, legend_width, look, margins, slug, style
from benchmark.statistics import accuracy_interval

STRENGTH = {"eps": "ε, L∞", "c": "constant c"}
"""The parameter of an attack that makes it stronger."""
FALLEN = 5.0
"""Accuracy in percent below which a curve counts as fallen."""


def curve_figures(cells: list[Cell], table: pd.DataFrame) -> list[Figure]:
    """A figure per dataset, attack, library and tier that was run at three strengths or more."""
    rows = table.copy()
    rows["strength"] = [next((cell.settings[key] for key in STRENGTH if key in cell.settings), None) for cell in cells]
    rows["parameter"] = [next((key for key in STRENGTH if key in cell.settings), "") for cell in cells]
    rows["rest"] = [
        ",".join(f"{key}={value}" for key, value in _relative(cell).items() if key not in STRENGTH) for cell in cells
    ]
    rows["unusual"] = [
        ",".join(
            f"{key}={_relative(cell)[key]}"
            for key, _, _ in (part.partition("=") for part in cell.parameters.split(",") if part)
            if key not in STRENGTH
        )
        for cell in cells
    ]
    rows = rows[rows["strength"].notna() & rows["accuracy"].notna()]
    keys = ["dataset", "attack", "library", "tier", "rest"]
    return [
        _curve(part, str(part["parameter"].iloc[0]))
        for _, part in rows.groupby(keys, sort=False)
        if part["strength"].nunique() >= 3
    ]


def _relative(cell: Cell) -> dict[str, Any]:
    """Settings with the step as a share of eps: along a curve the step grows with eps."""
    settings = cell.asked_settings
    if settings.get("step_size"):
        settings["step_size"] = f"{settings['step_size'] / settings['eps']:.6g}·eps"
    return settings


def _unattacked(rows: pd.DataFrame) -> pd.DataFrame:
    """Where a curve over eps begins: a row per defense and seed, of the most images that its attacks had."""
    first = rows.sort_values("samples", ascending=False, kind="stable").drop_duplicates(["defense", "seed"])
    right = (first["clean_accuracy"] * first["samples"] / 100).round().astype(int)
    bounds = [accuracy_interval(*pair) for pair in zip(right, first["samples"], strict=True)]
    low, high = ([round(100 * bound[side], 4) for bound in bounds] for side in (0, 1))
    return first.assign(strength=0.0, accuracy=first["clean_accuracy"], ci_low=low, ci_high=high)


def _curve(rows: pd.DataFrame, parameter: str) -> Figure:
    if parameter == "eps":
        rows = pd.concat([rows, _unattacked(rows)])
    dataset, attack, tier = (str(rows[key].iloc[0]) for key in ("dataset", "attack", "tier"))
    strengths = sorted(rows["strength"].unique())
    left = []
    with style():
        defenses = [str(defense) for defense in rows["defense"].unique()]
        figure = canvas(max(2.2, legend_height(len(defenses))), width=4.6)
        margins(figure, left=0.5, right=0.12 + legend_width(defenses))
        axis = figure.subplots()
        for position, (defense, values) in enumerate(rows.groupby("defense", sort=False)):
            line = values.groupby("strength")[["accuracy", "ci_low", "ci_high"]].mean()
            axis.fill_between(
                line.index, line["ci_low"], line["ci_high"], color=look(position)["color"], alpha=0.15, lw=0
            )
            axis.plot(line.index, line["accuracy"], marker="o", ms=3, label=str(defense), **look(position))
            if line["accuracy"].iloc[-1] > FALLEN:
                left.append(f"{defense} keeps {line['accuracy'].iloc[-1]:.1f} %")
        if parameter == "c":
            axis.set_xscale("log")
            shown = strengths[:: -(-len(strengths) // 8)]
            axis.set_xticks(shown, [f"{strength:g}" for strength in shown])
            axis.minorticks_off()
        else:
            axis.set_xlim(left=0)
        axis.set_ylim(0, 100)
        axis.set_xlabel(STRENGTH[parameter])
        axis.set_ylabel("accuracy, %")
        figure.legend(loc="upper right", borderaxespad=0.3)
    strongest = f"{parameter} = {strengths[-1]:g}"
    words = (
        f"At the strongest setting, {strongest}, accuracy has not fallen to nothing: {', '.join(left)}. "
        "Either the setting is still small or the attack is too weak; do not read it as robustness."
        if left
        else f"Every curve falls below {FALLEN:g} % by {strongest}, as it must."
    )
    library, rest = str(rows["library"].iloc[0]).partition(" ")[0], str(rows["unusual"].iloc[0])
    title = f"Accuracy against the strength of {attack}{f'({rest})' if rest else ''} on {dataset}, tier {tier}"
    columns = ["defense", "seed", "strength", "accuracy", "ci_low", "ci_high", "samples"]
    return Figure(slug("curve", dataset, attack, library, rest, tier), title, words, figure, rows[columns])
