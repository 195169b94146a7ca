"""The numbers of a run arranged as the paper does: attacks down, defenses across, a part for each tier."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pandas as pd

from benchmark.cells.cell import Cell, attack_titles
from benchmark.evaluations.clean import Clean
from benchmark.findings.results import Results
from benchmark.findings.rows import table_of, tabled
from benchmark.findings.statistics import SIGNIFICANT, paired_test


class Layout:
    """The cells of the tables and their rows."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.records = results.records
        self.cells = tabled(results)
        self.table = table_of(results)
        self.datasets: list[str] = unique(cell.images.dataset for cell in self.cells)
        self.titles = attack_titles(self.cells)
        self.seeds = len({cell.conditions.seed for cell in self.cells})
        self.all = list(range(len(self.cells)))
        self._best: dict[tuple[str, tuple[str, str], str], str | None] = {}

    def defenses(self, dataset: str) -> list[str]:
        return unique(cell.ensemble.defense for cell in self.cells if cell.images.dataset == dataset)

    def groups(self, dataset: str) -> list[str]:
        """The parts of a dataset's table: tiers, clean accuracy, black-box attacks."""
        return unique(cell.task.group for cell in self.cells if cell.images.dataset == dataset)

    def attacks(self, dataset: str, group: str) -> list[tuple[str, str]]:
        chosen = (cell for cell in self.cells if (cell.images.dataset, cell.task.group) == (dataset, group))
        return unique(map(self.attack, chosen))

    def attack(self, cell: Cell) -> tuple[str, str]:
        """Name and parameters; the library is added if the table has the attack of several libraries."""
        return self.titles[cell.images.dataset, cell.task.name, cell.task.library], cell.task.parameters

    @cached_property
    def _positions(self) -> dict[tuple[Any, ...], list[int]]:
        found: dict[tuple[Any, ...], list[int]] = {}
        for position, cell in enumerate(self.cells):
            key = (cell.images.dataset, self.attack(cell), cell.task.group, cell.ensemble.defense)
            found.setdefault(key, []).append(position)
        return found

    def of(self, dataset: str, attack: tuple[str, str], group: str, defense: str) -> list[int]:
        """Positions of the cells (one per seed) behind one number of the table."""
        return self._positions.get((dataset, attack, group, defense), [])

    def published(self, positions: list[int]) -> str:
        values = self.table["published"].iloc[positions].dropna()
        return f"{values.iloc[0]:.1f}" if len(values) else ""

    def best(self, dataset: str, attack: tuple[str, str], group: str) -> str | None:
        """The defense that leads every other on the same images, each difference significant for each seed; else None.

        None also if a defense has no number, or was measured under different circumstances.
        """
        key = (dataset, attack, group)
        if key not in self._best:
            self._best[key] = self._find_best(*key)
        return self._best[key]

    def _find_best(self, dataset: str, attack: tuple[str, str], group: str) -> str | None:
        found: dict[str, dict[int, pd.Series[float]]] = {}
        alike: dict[int, dict[str, str]] = {}
        for defense in self.defenses(dataset):
            cells = [self.cells[p] for p in self.of(dataset, attack, group, defense)]
            if not cells or any(cell not in self.records for cell in cells):
                return None
            if any(cell.images.order != "file" for cell in cells):
                return None  # early stopping is possible, and the test needs a fixed number of images
            if any(cell.circumstances != alike.setdefault(cell.conditions.seed, cell.circumstances) for cell in cells):
                return None
            found[defense] = {c.conditions.seed: self.records[c].set_index("index")["p_correct"] for c in cells}
        if len(found) < 2:
            return None
        means = {defense: float(pd.concat(seeds.values()).mean()) for defense, seeds in found.items()}
        leader = max(means, key=lambda defense: means[defense])
        others = [seeds for defense, seeds in found.items() if defense != leader]
        return leader if all(_leads(found[leader], seeds) for seeds in others) else None

    def quirk(self, dataset: str, attack: tuple[str, str], defense: str) -> float | None:
        """Tier paper minus tier strict; None if one of them is missing or has other images."""
        paper, strict = (self.table.iloc[self.of(dataset, attack, tier, defense)] for tier in ("paper", "strict"))
        gap = paper["accuracy"].mean() - strict["accuracy"].mean()
        images = [sorted(zip(part["seed"], part["samples"], strict=True)) for part in (paper, strict)]
        return float(gap) if images[0] == images[1] and not pd.isna(gap) else None

    def flagged(self, positions: list[int]) -> bool:
        """True if a check warns about one of the numbers."""
        rows = self.table.iloc[positions]
        return bool(((rows["samples"] > 0) & (rows["flags"] != "")).any())

    def unattacked(self, dataset: str, defense: str) -> pd.DataFrame:
        """Rows, one per seed, with the ensemble's clean accuracy on the largest number of images."""
        chosen = [
            position
            for position, cell in enumerate(self.cells)
            if (cell.images.dataset, cell.ensemble.defense) == (dataset, defense)
            and not (isinstance(cell.task, Clean) and cell.task.member is not None)
        ]
        rows = self.table.iloc[chosen]
        rows = rows[rows["samples"] > 0]
        return rows[rows["samples"] == rows["samples"].max()].drop_duplicates("seed")


def _leads(mine: dict[int, pd.Series[float]], theirs: dict[int, pd.Series[float]]) -> bool:
    """True if ahead for each seed; seeds are not pooled, because their outcomes on one image are not independent."""
    return mine.keys() == theirs.keys() and all(
        values.index.equals(theirs[seed].index)
        and values.mean() > theirs[seed].mean()
        and paired_test(values, theirs[seed]) < SIGNIFICANT
        for seed, values in mine.items()
    )


def unique(values: Any) -> list[Any]:
    """The values once each, in their order."""
    return list(dict.fromkeys(values))
