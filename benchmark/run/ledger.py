"""The state of running cells: their open batches and their outcomes; every finished batch is stored at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pandas as pd

from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.findings.rows import summarise
from benchmark.harness.records import Span
from benchmark.harness.subject import Material
from benchmark.harness.tiers import as_strict
from benchmark.run.display import RunDisplay
from benchmark.run.executors import Batch, Failure, Outcome
from defenses.errors import BadInput


class Ledger:
    """Yields the batches of unfinished cells, and assembles cells from the outcomes."""

    def __init__(self, store: Store, display: RunDisplay, keep_images: bool = False, refusals: bool = False) -> None:
        self.store, self.display = store, display
        self.keep_images, self.refusals = keep_images, refusals
        self.parts: dict[Cell, dict[Span, pd.DataFrame]] = {}
        """Finished batches of the running cells."""
        self.failed: set[Cell] = set()
        self.followers: dict[Cell, Cell] = {}
        """A running cell of tier paper to the cell of tier strict that takes its records."""

    def batches(self, work: Iterable[tuple[Material, list[Cell]]]) -> Iterator[Batch]:
        """The batches that the store does not have, cell by cell; a failed cell yields no more batches."""
        for material, cells in work:
            for cell in cells:
                self.display.begin(cell)
                wanted = list(spans_of(cell))
                finished = self.store.batches(cell, self.keep_images)
                self.parts[cell] = {span: finished[span] for span in wanted if span in finished}
                self._close_if_complete(cell)
                if cell.paper_twin in self.parts and cell in self.parts and not self.keep_images:
                    self.followers[cell.paper_twin] = cell
                    continue
                for span in wanted:
                    if span not in finished and cell not in self.failed:
                        yield Batch(material, cell, span)

    def take(self, outcome: Outcome) -> None:
        """Store an outcome; write a complete cell, and record a failed one."""
        cell, span = outcome.batch.cell, outcome.batch.span
        if isinstance(outcome.result, Failure):
            self._fail(cell, outcome.result)
            return
        if cell.task.attacks and span.size < cell.images.samples:
            self.store.write_batch(cell, span.first, outcome.result)
        if cell not in self.failed:
            self.parts[cell][span] = outcome.result
            self._close_if_complete(cell)
        if cell in self.followers:
            self.take(Outcome(replace(outcome.batch, cell=self.followers[cell]), as_strict(outcome.result)))

    def _fail(self, cell: Cell, failure: Failure) -> None:
        if failure.refused and not self.refusals:
            raise BadInput(failure.words)
        if cell not in self.failed:
            self.failed.add(cell)
            self.parts.pop(cell)
            self.store.write_failure(cell, str(failure))
            self.display.failed(cell, str(failure))
            if cell in self.followers:
                self._fail(self.followers[cell], failure)

    def _close_if_complete(self, cell: Cell) -> None:
        parts = self.parts[cell]
        self.display.advance(cell, sum(span.size for span in parts))
        if len(parts) == len(list(spans_of(cell))):
            records = pd.concat([parts[span] for span in sorted(parts)], ignore_index=True)
            self.store.write(cell, records)
            self.display.done(cell, summarise(cell, records))
            del self.parts[cell]


def spans_of(cell: Cell) -> Iterator[Span]:
    """The rows of every batch of a cell."""
    for first in range(0, cell.images.samples, cell.conditions.batch_size):
        yield Span(first, min(first + cell.conditions.batch_size, cell.images.samples))
