"""Survival: the images that stay correct under every attack of one bound, for every defense, tier by tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmark.attacks.bounds import Bound, Norm
from benchmark.cells.cell import Cell, in_both_tiers, setting
from benchmark.findings.layout import Layout
from benchmark.findings.statistics import SIGNIFICANT, mean_interval, paired_test


@dataclass(frozen=True)
class Survival:
    """For each defense, the images that stay correct under every attack of one bound."""

    bound: Bound
    attacks: list[str]
    suite: bool
    """Whether the attacks are the suite of tier strong."""
    images: int
    right: dict[str, NDArray[np.float64]]
    """For every image, the lowest probability of a correct prediction: 0 or 1 unless the ensemble is randomised.

    The images of all seeds follow each other. Only defenses with all cells finished are included.
    """
    seeds: int
    lacking: int
    """Number of defenses that are left out, because a cell is not finished."""
    alike: bool
    """Whether the cells of each row ran under the same circumstances."""
    fixed_size: bool = True
    """Whether the number of images was fixed in advance, as McNemar's test needs."""

    def interval(self, defense: str) -> tuple[float, float] | None:
        """95 % interval over the images, in percent; None for several seeds, because they share images."""
        if self.seeds > 1:
            return None
        low, high = mean_interval(self.right[defense])
        return 100 * low, 100 * high

    def percent(self, defense: str) -> float:
        return 100 * float(self.right[defense].mean())

    def spread(self, defense: str) -> float:
        """Standard deviation over seeds, in percent."""
        by_seed = self.right[defense].reshape(self.seeds, -1).mean(axis=1)
        return 100 * float(by_seed.std(ddof=1)) if self.seeds > 1 else 0.0

    def leads(self, leader: str) -> bool:
        """True if ahead of every other defense on the same images, each difference significant for each seed."""
        return (
            not self.lacking
            and self.alike
            and self.fixed_size
            and all(
                mine.mean() > theirs.mean() and paired_test(mine, theirs) < SIGNIFICANT
                for defense, values in self.right.items()
                if defense != leader
                for mine, theirs in zip(
                    self.right[leader].reshape(self.seeds, -1), values.reshape(self.seeds, -1), strict=True
                )
            )
        )


def survival(layout: Layout, dataset: str, group: str, within: Bound | None = None) -> Survival | None:
    """Survival under the attacks of one bound, by default the bound of most attacks; different bounds do not compare.

    Tiers paper and strict use their common attacks, so that they differ only in the way of attacking.
    """
    here = [cell for cell in layout.cells if cell.images.dataset == dataset and cell.task.bound]
    both = in_both_tiers(here)
    bounds: dict[Bound, list[Cell]] = {}
    for cell in here:
        compared = group not in ("paper", "strict") or not both or setting(cell) in both
        bound = cell.task.bound
        if cell.task.group == group and compared and bound and (within is None or bound == within):
            bounds.setdefault(bound, []).append(cell)
    if not bounds:
        return None
    bound = max(bounds, key=lambda one: len({setting(cell) for cell in bounds[one]}))
    chosen = bounds[bound]
    finished = [cell for cell in chosen if cell in layout.records]
    images = min((len(layout.records[cell]) for cell in finished), default=0)
    settings = list(dict.fromkeys(map(setting, chosen)))
    seeds = sorted({cell.conditions.seed for cell in chosen})
    right = {}
    for defense in layout.defenses(dataset):
        mine = [cell for cell in finished if cell.ensemble.defense == defense]
        if {(setting(cell), cell.conditions.seed) for cell in mine} == {(s, seed) for s in settings for seed in seeds}:
            by_seed = [[cell for cell in mine if cell.conditions.seed == seed] for seed in seeds]
            right[defense] = np.concatenate([still_right(layout, cells, images) for cells in by_seed])
    if not right:
        return None
    names = list(dict.fromkeys(attack for attack, _, _ in settings))
    lacking = len(layout.defenses(dataset)) - len(right)
    suite = all(cell.task.attack is None for cell in chosen)
    fixed = all(cell.images.order == "file" for cell in finished)
    return Survival(bound, names, suite, images, right, len(seeds), lacking, measured_alike(finished), fixed)


def shared_bound(layout: Layout, dataset: str) -> Bound | None:
    """The bound of the most groups of a dataset's table; among several, the bound of the most attacks."""
    groups: dict[Bound, set[str]] = {}
    settings: dict[Bound, set[object]] = {}
    for cell in layout.cells:
        if cell.images.dataset == dataset and cell.task.bound:
            groups.setdefault(cell.task.bound, set()).add(cell.task.group)
            settings.setdefault(cell.task.bound, set()).add(setting(cell))
    return max(groups, key=lambda bound: (len(groups[bound]), len(settings[bound])), default=None)


def still_right(layout: Layout, cells: Sequence[Cell], images: int) -> NDArray[np.float64]:
    """For each of the first images, the lowest probability of a correct prediction over the cells."""
    return np.minimum.reduce([layout.records[cell]["p_correct"].to_numpy()[:images] for cell in cells])


def measured_alike(cells: Sequence[Cell]) -> bool:
    """Whether the cells of each row ran under the same circumstances."""
    rows: dict[object, dict[str, str]] = {}
    return all(cell.circumstances == rows.setdefault(cell.line, cell.circumstances) for cell in cells)


def of_one_norm(layout: Layout, dataset: str, group: str) -> tuple[Norm | None, list[tuple[str, str]]]:
    """The norm of a group's summary, and its attacks; a number over several norms cannot be compared.

    It is the norm of the bound that the tiers share, if the group has it; otherwise, the norm of the most attacks. An
    attack without a bound finally fools every image, so such attacks count only if there are no others; their norm is
    the norm that they minimise.
    """
    here = [cell for cell in layout.cells if (cell.images.dataset, cell.task.group) == (dataset, group)]
    chosen = [cell for cell in here if cell.task.bound] or here
    attacks: dict[Norm | None, dict[tuple[str, str], None]] = {}
    for cell in chosen:
        attacks.setdefault(_norm(cell), {})[layout.attack(cell)] = None
    if not attacks:
        return None, []
    shared = shared_bound(layout, dataset)
    norm = max(attacks, key=lambda one: (shared is not None and one == shared.norm, len(attacks[one])))
    return norm, list(attacks[norm])


def _norm(cell: Cell) -> Norm | None:
    """The norm of a cell's bound, else the norm that its attack minimises."""
    named = cell.task.attack
    if cell.task.bound:
        return cell.task.bound.norm
    return named.attack.minimised if named else None


def by_norm(layout: Layout, dataset: str, group: str) -> dict[Norm | None, list[tuple[str, str]]]:
    """The attacks of a group by the norm of their bound; attacks without a bound are under None."""
    found: dict[Norm | None, dict[tuple[str, str], None]] = {}
    for cell in layout.cells:
        if (cell.images.dataset, cell.task.group) == (dataset, group):
            norm = cell.task.bound.norm if cell.task.bound else None
            found.setdefault(norm, {})[layout.attack(cell)] = None
    return {norm: list(attacks) for norm, attacks in found.items()}


def lowest(
    layout: Layout, dataset: str, group: str, attacks: Sequence[tuple[str, str]]
) -> dict[str, tuple[float, tuple[str, str]]]:
    """Per defense with all of these attacks finished: the lowest accuracy and its attack.

    The attacks should have one norm (`by_norm`, `of_one_norm`): a number over several norms cannot be compared.
    """
    found = {}
    for defense in layout.defenses(dataset):
        values = {}
        for attack in attacks:
            numbers = layout.table["accuracy"].iloc[layout.of(dataset, attack, group, defense)]
            if len(numbers) and numbers.notna().all():
                values[attack] = float(numbers.mean())
        if attacks and len(values) == len(attacks):
            worst = min(values, key=lambda attack: values[attack])
            found[defense] = values[worst], worst
    return found
