"""Cells: the unit of work, of caching, of resuming and of distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmark.evaluations.task import Task
from benchmark.evaluations.whitebox import WhiteBox

Order = Literal["file", "shuffled"]
"""The order of the test images: the order of their file, or one fixed random order."""
Line = tuple[str, int, Any]
"""The key of a table row, shared by cells of several defenses: dataset, seed and `Task.asked`."""


@dataclass(frozen=True)
class EnsembleFacts:
    """The facts about a trained ensemble that a cell stores."""

    defense: str
    """Short name for tables."""
    spec: str
    """Canonical defense spec, or the path of a checkpoint."""
    members: int
    network: str
    training: str
    """Recipe and epochs, in words; empty for checkpoints from outside."""
    weights: str
    """sha256 of the weights."""
    convergence: str | None = None
    """Warnings about its training, in words; None if its checkpoint has no such information."""


@dataclass(frozen=True)
class TestImages:
    """The first ``samples`` images of a test set, in some order."""

    dataset: str
    checksum: str
    samples: int
    order: Order = "file"


def rows_in(order: Order, size: int) -> NDArray[np.int64]:
    """The rows of a test set in the given order; the shuffled order depends only on the size."""
    if order == "file":
        return np.arange(size)
    return np.random.RandomState(0).permutation(size)  # the old generator is the same in every version of NumPy


@dataclass(frozen=True)
class Conditions:
    """The other settings that the records of an image depend on."""

    seed: int
    batch_size: int
    device: str
    acceleration: str = "folded"
    """How the attacked copy is made: each copy rounds differently, which can decide the result of an image."""


@dataclass(frozen=True)
class Cell:
    """One task for one trained ensemble, on some images, under some conditions."""

    ensemble: EnsembleFacts
    task: Task
    images: TestImages
    conditions: Conditions
    published: float | None = field(default=None, compare=False)
    """The paper's accuracy in percent; None if the paper has none."""

    @cached_property
    def identity(self) -> str:
        """Hash of everything that changes the records of its images."""
        from benchmark.cells.codec import identity_of

        return identity_of(self, with_samples=True)

    @cached_property
    def series(self) -> str:
        """Like the identity, but without the number of samples: a larger sample set extends a smaller one."""
        from benchmark.cells.codec import identity_of

        return identity_of(self, with_samples=False)

    def named(self, defense: str) -> Cell:
        """The same cell with another name of its defense; its identity does not change."""
        return (
            self
            if defense == self.ensemble.defense
            else replace(self, ensemble=replace(self.ensemble, defense=defense))
        )

    @property
    def paper_twin(self) -> Cell | None:
        """The cell of tier paper whose images this cell of tier strict shares; None without one."""
        twin = self.task.paper_twin if isinstance(self.task, WhiteBox) else None
        return replace(self, task=twin) if twin else None

    @cached_property
    def line(self) -> Line:
        """The key of its table row, which the cells of that row share."""
        return self.images.dataset, self.conditions.seed, self.task.asked

    @property
    def place(self) -> tuple[Line, str]:
        """Its row and column in a table; of two cells with the same place, the later one counts."""
        return self.line, self.ensemble.defense

    @property
    def column(self) -> tuple[str, str, int]:
        """Its table column and its seed; all cells with the same value have the same weights."""
        return self.images.dataset, self.ensemble.defense, self.conditions.seed

    @property
    def circumstances(self) -> dict[str, str]:
        """Settings that should be equal if results are compared."""
        ran = {"batch size": str(self.conditions.batch_size), "device": self.conditions.device}
        return ran | {"acceleration": self.conditions.acceleration} | self.task.used

    @property
    def title(self) -> str:
        """For progress lines."""
        return f"{self.ensemble.defense} · {self.task.title}"


def setting(cell: Cell) -> tuple[str, str, str]:
    """The attack as a table names it; cells of different defenses, tiers and seeds share it."""
    return cell.task.name, cell.task.parameters, cell.task.library


def attack_titles(cells: Iterable[Cell]) -> dict[tuple[str, str, str], str]:
    """The title of an attack, by dataset, attack and library; it has the library if there are several."""
    keys = {(cell.images.dataset, cell.task.name, cell.task.library) for cell in cells}
    several = Counter((dataset, attack) for dataset, attack, _ in keys)
    return {
        (d, attack, library): f"{attack}@{library}" if several[d, attack] > 1 else attack for d, attack, library in keys
    }


def in_both_tiers(cells: Iterable[Cell]) -> set[tuple[str, str, str]]:
    """Attacks in both tiers, paper and strict; on these, the tiers differ only in their rules."""
    found: dict[str, set[tuple[str, str, str]]] = {"paper": set(), "strict": set()}
    for cell in cells:
        found.get(cell.task.group, set()).add(setting(cell))
    return found["paper"] & found["strict"]
