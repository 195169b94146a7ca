"""Cells under way: what is still to be evaluated, and what came back; every finished batch is kept at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pandas as pd

from benchmark.cells import Cell
from benchmark.display import RunDisplay
from benchmark.executors import Batch, Failure, Material, Outcome
from benchmark.reports.tables import summarise
from benchmark.store import Store
from defenses.errors import BadInput

Rows = tuple[int, int]


class Ledger:
    """Hands out the batches of cells that are not done, and puts cells together from what comes back."""

    def __init__(self, store: Store, display: RunDisplay, keep_images: bool = False, refusals: bool = False) -> None:
        self.store, self.display = store, display
        self.keep_images, self.refusals = keep_images, refusals
        self.parts: dict[str, dict[Rows, pd.DataFrame]] = {}
        """Finished batches of the cells under way, by the key of the cell."""
        self.failed: set[str] = set()

    def batches(self, work: Iterable[tuple[Material, list[Cell]]]) -> Iterator[Batch]:
        """Cell by cell, what the store does not have; of a cell that failed, nothing more."""
        for material, cells in work:
            for cell in cells:
                self.display.begin(cell)
                wanted = list(rows_of(cell))
                finished = self.store.batches(cell, self.keep_images)
                self.parts[cell.key] = {rows: finished[rows] for rows in wanted if rows in finished}
                self._close_if_complete(cell)
                for first, end in wanted:
                    if (first, end) not in finished and cell.key not in self.failed:
                        yield Batch(material, cell, first, end)

    def take(self, outcome: Outcome) -> None:
        """Keep what came back; a cell that is complete is written, one that failed is remembered."""
        cell, first, end = outcome.batch.cell, outcome.batch.first, outcome.batch.end
        if isinstance(outcome.result, Failure):
            self._fail(cell, outcome.result)
            return
        if cell.attack != "none" and (end < cell.samples or first > 0):
            self.store.write_batch(cell, first, outcome.result)
        if cell.key not in self.failed:
            self.parts[cell.key][first, end] = outcome.result
            self._close_if_complete(cell)

    def _fail(self, cell: Cell, failure: Failure) -> None:
        if failure.refused and not self.refusals:
            raise BadInput(failure.words)
        if cell.key not in self.failed:
            self.failed.add(cell.key)
            self.parts.pop(cell.key)
            self.store.write_failure(cell, str(failure))
            self.display.failed(cell, str(failure))

    def _close_if_complete(self, cell: Cell) -> None:
        parts = self.parts[cell.key]
        self.display.advance(cell, sum(end - first for first, end in parts))
        if len(parts) == len(list(rows_of(cell))):
            records = pd.concat([parts[rows] for rows in sorted(parts)], ignore_index=True)
            self.store.write(cell, records)
            self.display.done(cell, summarise(cell, records))
            del self.parts[cell.key]


def rows_of(cell: Cell) -> Iterator[Rows]:
    """First row and end row of every batch of a cell."""
    for first in range(0, cell.samples, cell.batch_size):
        yield first, min(first + cell.batch_size, cell.samples)
