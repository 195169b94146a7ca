"""Strengths: accuracy against the strength of an attack, for attacks that were run at three strengths or more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.evaluations.worst_case import WorstCase
from benchmark.findings.layout import Layout
from benchmark.findings.rows import percent_interval

FEWEST = 3
"""Fewest strengths of a curve."""


@dataclass(frozen=True)
class Curve:
    """One attack at several strengths, on every defense that has it."""

    parameter: str
    """The parameter that makes the attack stronger."""
    bound: Bound | None
    """A bound of the curve's norm, if the strength is a radius; such a curve begins at the clean accuracy."""
    rest: str
    """The other settings in the attack's spec; settings that grow with the strength are relative to it."""
    rows: pd.DataFrame


def curves(layout: Layout) -> Iterator[Curve]:
    """A curve per dataset, attack, library and tier."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for position, cell in enumerate(layout.cells):
        if strength(cell) is not None and layout.table["accuracy"].notna().iloc[position]:
            names = layout.table[["dataset", "attack", "library", "tier"]].iloc[position]
            groups.setdefault((*names, _kind(cell)), []).append(position)
    for positions in groups.values():
        first = layout.cells[positions[0]]
        rows = layout.table.iloc[positions].assign(strength=[strength(layout.cells[p]) for p in positions])
        if rows["strength"].nunique() >= FEWEST:
            bound = first.task.bound
            whole = pd.concat([rows, _unattacked(rows)]) if bound else rows
            yield Curve("eps" if bound else _parameter(first), bound, _unusual(first), whole)


def strength(cell: Cell) -> float | None:
    """The strength of an attack: the radius of its bound, or the value of the parameter that makes it stronger."""
    if cell.task.bound is not None:
        return cell.task.bound.radius
    named = cell.task.attack
    return float(named.settings()[named.strength]) if named and named.strength else None


def _parameter(cell: Cell) -> str:
    return cell.task.attack.strength if cell.task.attack else ""


def _kind(cell: Cell) -> tuple[Any, ...]:
    """The settings that all points of a curve share; settings that grow with the strength are relative to it."""
    named = cell.task.attack
    norm = cell.task.bound and cell.task.bound.norm
    return (norm, *cell.task.extras, *(sorted(_relative(cell).items(), key=str) if named else ()))


def _relative(cell: Cell) -> dict[str, Any]:
    """Settings without the strength; settings that grow with it, such as the step, are relative to it."""
    if cell.task.attack is None:
        return {}
    named, attack = cell.task.attack, cell.task.attack.attack
    settings = {key: value for key, value in named.settings().items() if key != named.strength}
    for key in attack.scaled:
        if settings.get(key):
            settings[key] = f"{settings[key] / strength(cell):.6g}·{named.strength}"
    return settings


def _unusual(cell: Cell) -> str:
    if isinstance(cell.task, WorstCase):
        norm = "" if cell.task.limit.norm == "linf" else f"norm={cell.task.limit.norm}"
        suite = "" if cell.task.suite == "full" else f"suite={cell.task.suite}"
        return ",".join(filter(None, (norm, suite)))
    named, relative = cell.task.attack, _relative(cell)
    written = [part.partition("=")[0] for part in cell.task.parameters.split(",")] if named else []
    return ",".join(f"{key}={relative[key]}" for key in written if key in relative)


def _unattacked(rows: pd.DataFrame) -> pd.DataFrame:
    """The start of a curve over a radius: clean accuracy per defense and seed, on the most images of its attacks."""
    first = rows.sort_values("samples", ascending=False, kind="stable").drop_duplicates(["defense", "seed"])
    right = (first["clean_accuracy"] * first["samples"] / 100).round().astype(int)
    bounds = [percent_interval(*pair) for pair in zip(right, first["samples"], strict=True)]
    low, high = ([bound[side] for bound in bounds] for side in (0, 1))
    return first.assign(strength=0.0, accuracy=first["clean_accuracy"], ci_low=low, ci_high=high)
