"""Radii: the smallest perturbation that a minimum-norm attack found for each image, which gives a security curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmark.attacks import NamedAttack
from benchmark.attacks.bounds import Norm
from benchmark.cells.cell import Cell
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import WorstCase
from benchmark.findings.results import Results
from benchmark.findings.rows import percent_interval
from benchmark.harness.records import was_right

POINTS = 100
"""Steps from radius 0 to the largest radius of a curve."""
COLUMNS = (
    "dataset", "attack", "library", "norm", "settings", "defense", "seed", "images", "failed", "radius", "survivors",
    "accuracy", "ci_low", "ci_high",
)  # fmt: skip
"""``failed`` counts the images that the attack could not fool; accuracies are in percent."""

Radii = NDArray[np.float64]


def radii(records: pd.DataFrame, norm: Norm) -> Radii:
    """The smallest perturbation found for each image of a minimum-norm attack's records.

    A misclassified clean image has radius 0. An image on which the attack failed has an infinite radius: it survives
    every radius. The true radius is at most the radius found.
    """
    found = np.where(records["correct"], np.inf, records[norm].to_numpy(dtype=np.float64))
    return np.where(was_right(records), found, 0.0)


def survivors(found: Radii, radius: float) -> int:
    """Images whose smallest perturbation exceeds the radius."""
    return int((found > radius).sum())


@dataclass(frozen=True)
class RadiusCurve:
    """One minimum-norm attack on every defense that has it."""

    dataset: str
    attack: str
    library: str
    norm: Norm
    settings: tuple[str, ...]
    """Parameters of the attack in this run; with several settings, the smallest perturbation of each image counts."""
    found: dict[tuple[str, int], Radii]
    """By defense and seed."""
    points: pd.DataFrame
    """Points beside the curve: per defense, seed and bound of this norm, the lowest accuracy under an attack."""

    @property
    def grid(self) -> Radii:
        """The radii of the table: from 0 to the largest radius found."""
        largest = max((float(one[np.isfinite(one)].max(initial=0)) for one in self.found.values()), default=0.0)
        even = np.linspace(0, largest, POINTS + 1)
        return np.unique(np.ceil(even)) if self.norm == "l0" else np.unique(even)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Per defense, seed and radius: the images that survive, with the interval of their share."""
        for (defense, seed), found in self.found.items():
            for radius in self.grid:
                left = survivors(found, radius)
                low, high = percent_interval(left, len(found))
                yield {
                    "dataset": self.dataset,
                    "attack": self.attack,
                    "library": self.library,
                    "norm": self.norm,
                    "settings": "; ".join(self.settings),
                    "defense": defense,
                    "seed": seed,
                    "images": len(found),
                    "failed": int(np.isinf(found).sum()),
                    "radius": float(radius),
                    "survivors": left,
                    "accuracy": round(100 * left / len(found), 4),
                    "ci_low": low,
                    "ci_high": high,
                }


def radius_curves(results: Results) -> list[RadiusCurve]:
    """A curve per dataset, minimum-norm attack and library, over the settings that every defense has."""
    groups: dict[tuple[str, str, str, Norm], list[Cell]] = {}
    for cell, named in _unbounded(results):
        if named.attack.minimised:
            key = (cell.images.dataset, named.name, f"{named.library} {named.version}".strip(), named.attack.minimised)
            groups.setdefault(key, []).append(cell)
    found = (_curve(results, key, _one_tier(cells)) for key, cells in groups.items())
    return [curve for curve in found if curve]


def without_curve(results: Results) -> list[str]:
    """Minimum-norm attacks that have no curve, because the norm that they minimise is not known."""
    return list(dict.fromkeys(named.title for _, named in _unbounded(results) if not named.attack.minimised))


def _unbounded(results: Results) -> Iterator[tuple[Cell, NamedAttack]]:
    """Finished cells of untargeted minimum-norm attacks without a bound."""
    for cell in results.of(WhiteBox):
        named = cell.task.attack
        if named and named.attack.minimises and named.bound is None and not named.attack.wants_target:
            yield cell, named


def radius_table(curves: Sequence[RadiusCurve]) -> pd.DataFrame:
    """The curves as rows (radii.csv)."""
    return pd.DataFrame([row for curve in curves for row in curve.rows()], columns=list(COLUMNS))


def _one_tier(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of tier strict, else of tier paper; on correct images, both tiers have the same perturbations."""
    strict = [cell for cell in cells if cell.task.tier == "strict"]
    return strict or list(cells)


def _curve(results: Results, key: tuple[str, str, str, Norm], cells: Sequence[Cell]) -> RadiusCurve | None:
    by_ensemble: dict[tuple[str, int], dict[str, Cell]] = {}
    for cell in cells:
        by_ensemble.setdefault((cell.ensemble.defense, cell.conditions.seed), {})[cell.task.parameters] = cell
    shared = set.intersection(*(set(settings) for settings in by_ensemble.values()))
    if not shared:
        return None
    norm = key[-1]
    found: dict[tuple[str, int], Radii] = {}
    for ensemble, settings in by_ensemble.items():
        records = [results.records[settings[one]] for one in sorted(shared)]
        images = min(map(len, records))
        found[ensemble] = np.minimum.reduce([radii(one, norm)[:images] for one in records])
    settings_in_order = [one for one in dict.fromkeys(cell.task.parameters for cell in cells) if one in shared]
    return RadiusCurve(*key, tuple(settings_in_order), found, _points(results, key[0], norm, set(found)))


def _points(results: Results, dataset: str, norm: Norm, ensembles: set[tuple[str, int]]) -> pd.DataFrame:
    lowest: dict[tuple[str, int, float], tuple[float, str]] = {}
    for cell in results.finished:
        bound, task = cell.task.bound, cell.task
        ensemble = (cell.ensemble.defense, cell.conditions.seed)
        fair = isinstance(task, (WhiteBox, WorstCase)) and task.tier != "paper"
        aimed = task.attack is not None and task.attack.attack.wants_target
        here = cell.images.dataset == dataset and ensemble in ensembles
        if bound and bound.norm == norm and fair and here and not aimed:
            one = (100 * float(results.records[cell]["p_correct"].mean()), task.attack_title)
            place = (*ensemble, bound.radius)
            lowest[place] = min(lowest.get(place, one), one)
    rows = [(*place, *one) for place, one in sorted(lowest.items())]
    return pd.DataFrame(rows, columns=["defense", "seed", "radius", "accuracy", "attack"])
