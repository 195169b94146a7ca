"""Results: a run folder read once; every finding is a function of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmark.cells.cell import Cell, TestImages
from benchmark.cells.pictures import Pictures
from benchmark.cells.store import Store
from benchmark.evaluations.task import Task
from benchmark.findings import naming
from benchmark.findings.diagnostics import Diagnosis, diagnose
from defenses.errors import BadInput
from defenses.registry import did_you_mean

COMPARED = "comparison.json"
"""The file that lists the compared defenses of a run."""

UNTIL = "until.json"
"""The file with the rule by which the rows of a run stopped."""


@dataclass(frozen=True)
class Results:
    """The cells of a run, in the manifest's order, and the records of those that are finished."""

    cells: tuple[Cell, ...]
    records: Mapping[Cell, pd.DataFrame]
    failures: Mapping[Cell, str] = field(default_factory=dict)
    """The reason why a cell failed, for each cell that was tried."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    commits: Mapping[str, int] = field(default_factory=dict)
    """The number of finished cells of each commit of the code."""
    compared: Mapping[str, Any] = field(default_factory=dict)
    """The compared defenses, in a run with a comparison."""
    until: Mapping[str, Any] = field(default_factory=dict)
    """The rule by which rows stopped early, in a run that tests after every batch."""
    pictures: Callable[[Cell], Pictures | None] = lambda cell: None
    clean_pictures: Callable[[TestImages], NDArray[np.float16] | None] = lambda taken: None

    @property
    def title(self) -> str:
        return str(self.manifest["title"])

    def class_name(self, dataset: str, label: int) -> str:
        """The name of a class, or its number if the dataset has no names."""
        names = self.manifest.get("class_names", {})
        own = names.get(dataset) if isinstance(names, dict) else None
        return str(own[label]) if isinstance(own, list) and 0 <= label < len(own) else naming.class_name(dataset, label)

    @property
    def finished(self) -> list[Cell]:
        """Cells with records."""
        return [cell for cell in self.cells if cell in self.records]

    def of(self, kind: type[Task]) -> list[Cell]:
        """Finished cells of one evaluation."""
        return [cell for cell in self.finished if isinstance(cell.task, kind)]

    def of_defenses(self, defenses: Sequence[str]) -> Results:
        """Only the cells of these defenses, in this order; all cells if no defense is named."""
        if not defenses:
            return self
        known = dict.fromkeys(cell.ensemble.defense for cell in self.cells)
        for name in defenses:
            if name not in known:
                raise BadInput(f"this run has no defense {name!r}; {did_you_mean(name, known)}")
        cells = [cell for cell in self.cells if cell.ensemble.defense in defenses]
        return replace(self, cells=tuple(sorted(cells, key=lambda cell: defenses.index(cell.ensemble.defense))))

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """Warnings about the numbers of the run; cells that are in no table are checked too."""
        return diagnose((cell, self.records[cell]) for cell in self.finished)


def read_results(store: Store) -> Results:
    """Read and check the results of a run so far."""
    manifest = store.manifest()
    cells = tuple(store.asked())
    finished = [cell for cell in cells if store.has(cell)]
    reasons = {cell: store.failure(cell) for cell in cells if cell not in set(finished)}
    return Results(
        cells,
        {cell: store.read(cell) for cell in finished},
        {cell: reason for cell, reason in reasons.items() if reason},
        manifest,
        Counter(store.commits()),
        _compared(store),
        read_until(store),
        store.pictures,
        store.clean_pictures,
    )


def read_until(store: Store) -> dict[str, Any]:
    """The rule by which rows stopped early; empty for a run with fixed numbers of images."""
    path = store.folder / UNTIL
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return {str(key): value for key, value in found.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read ({error}); run the comparison again") from None


def _compared(store: Store) -> dict[str, Any]:
    path = store.folder / COMPARED
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        references = found["references"] if "references" in found else [found["reference"]]  # the first version had one
        names = {"candidate": str(found["candidate"]), "references": [str(name) for name in references]}
        return {**names, "costs": [*found["costs"]]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read ({error}); run the comparison again") from None
