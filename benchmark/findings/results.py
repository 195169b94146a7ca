"""Results: a run folder read once; every finding is a function of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmark.cells.cell import Cell
from benchmark.cells.pictures import Pictures
from benchmark.cells.store import Store
from benchmark.evaluations.task import Task
from benchmark.findings.diagnostics import Diagnosis, diagnose
from defenses.errors import BadInput

COMPARED = "comparison.json"
"""The file that says which defenses of a run are compared."""


@dataclass(frozen=True)
class Results:
    """The cells of a run, in the manifest's order, and the records of those that are finished."""

    cells: tuple[Cell, ...]
    records: Mapping[Cell, pd.DataFrame]
    failures: Mapping[Cell, str] = field(default_factory=dict)
    """Why a cell has no records, where it was tried."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    commits: Mapping[str, int] = field(default_factory=dict)
    """How many of the finished cells each state of the code has finished."""
    compared: Mapping[str, Any] = field(default_factory=dict)
    """Which defenses are compared, in a run that compares."""
    pictures: Callable[[Cell], Pictures | None] = lambda cell: None
    clean_pictures: Callable[[str], NDArray[np.float16] | None] = lambda checksum: None

    @property
    def title(self) -> str:
        return str(self.manifest["title"])

    @property
    def finished(self) -> list[Cell]:
        """Cells with records."""
        return [cell for cell in self.cells if cell in self.records]

    def of(self, kind: type[Task]) -> list[Cell]:
        """Finished cells of one evaluation."""
        return [cell for cell in self.finished if isinstance(cell.task, kind)]

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What the records say against their own numbers; some cells are in no table, but witnesses against one."""
        return diagnose((cell, self.records[cell]) for cell in self.finished)


def read_results(store: Store) -> Results:
    """Read and check what a run has so far."""
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
        store.pictures,
        store.clean_pictures,
    )


def _compared(store: Store) -> dict[str, Any]:
    path = store.folder / COMPARED
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"candidate": str(found["candidate"]), "reference": str(found["reference"]), "costs": [*found["costs"]]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read ({error}); run the comparison again") from None
