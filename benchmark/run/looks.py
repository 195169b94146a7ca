"""Early stopping: each row of the tables is tested after every batch, and a settled row gets no more images."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from benchmark.cells.cell import Cell, Line
from benchmark.cells.store import Store
from benchmark.findings.decisions import Decided, Outcomes, Until
from benchmark.findings.results import UNTIL, read_until
from benchmark.harness.records import Span
from benchmark.harness.subject import Subject, subject_of
from benchmark.harness.tiers import as_strict
from benchmark.machine.clock import clock
from benchmark.plan.planning import Work
from benchmark.plan.run_request import Request
from benchmark.run.display import RunDisplay
from benchmark.run.executors import Failure, evaluate
from benchmark.run.ledger import spans_of
from benchmark.run.materials import material_of
from defenses.files import write_text


@dataclass
class _Row:
    """Cells that get the same images: all cells of a table row, or a single cell."""

    cells: list[Cell]
    """With the largest number of images that each may use."""
    done: int = 0
    """Number of batches that every cell has."""
    closed: bool = False
    spans: list[Span] = field(init=False)

    def __post_init__(self) -> None:
        self.spans = list(spans_of(self.cells[0]))

    @property
    def images(self) -> int:
        """The number of images that every cell has; before the first batch, the size of that batch."""
        return self.spans[max(0, self.done - 1)].end


class Looks:
    """The rows of a run that may stop early, and their progress."""

    def __init__(self, store: Store, request: Request, work: list[Work], until: Until) -> None:
        self.store, self.request, self.work = store, request, work
        self.rows = _rows(work, together=isinstance(until.rule, Decided))
        self.rule = _counted(until.rule, self.rows, store) if isinstance(until.rule, Decided) else until.rule
        self.budget = until.budget
        self.parts: dict[Cell, dict[Span, pd.DataFrame]] = {}
        for row in self.rows:
            for cell in row.cells:
                self.parts[cell] = store.batches(cell, request.keep_images)
            while row.done < len(row.spans) and all(row.spans[row.done] in self.parts[cell] for cell in row.cells):
                row.done += 1
        self.images_before = sum(row.images * len(row.cells) for row in self.rows if row.done)

    def keep(self) -> None:
        """Store the rule with the run, so that every report of the run shows the decisions."""
        if isinstance(self.rule, Decided):
            write_text(self.store.folder / UNTIL, json.dumps(self.rule.written(), indent=1) + "\n")

    def so_far(self) -> list[Work]:
        """The work, with the number of images that each row has so far."""
        sizes = {cell: row.images for row in self.rows for cell in row.cells}

        def sized(cell: Cell) -> Cell:
            images = replace(cell.images, samples=sizes.get(cell, cell.images.samples))
            return replace(cell, images=images)

        return [replace(part, cells=[sized(cell) for cell in part.cells]) for part in self.work]

    def go(self, display: RunDisplay) -> None:
        """Run a batch for every open row and test the row, until all are settled or the budget is spent."""
        if self.images_before:
            display.say(f"resuming after {self.images_before} attacked images")
        began = time.monotonic()
        for row in self.rows:
            self._look(row, display)
        with ExitStack() as stack:
            subjects: dict[int, Subject] = {}
            while going_on := [row for row in self.rows if not row.closed]:
                for row in going_on:
                    if row.done and self.budget is not None and time.monotonic() - began > self.budget:
                        words = f"the budget of {clock(self.budget)} is spent; run the same command again to resume"
                        display.say(words)
                        return
                    self._extend(row, stack, subjects, display)
                    self._look(row, display)

    def _extend(self, row: _Row, stack: ExitStack, subjects: dict[int, Subject], display: RunDisplay) -> None:
        """Run the next batch of every cell of a row; a failure closes the row, and the run reports it later."""
        span = row.spans[row.done]
        row.done += 1
        for cell in row.cells:
            if span in self.parts[cell]:
                continue
            twin = cell.paper_twin
            if twin is not None and span in self.parts.get(twin, {}):
                self.parts[cell][span] = as_strict(self.parts[twin][span])
                continue
            result = evaluate(self._subject(cell, stack, subjects, display), cell, span, display.say)
            if isinstance(result, Failure):
                row.closed = True
                return
            self.store.write_batch(cell, span.first, result)
            self.parts[cell][span] = result

    def _subject(self, cell: Cell, stack: ExitStack, subjects: dict[int, Subject], display: RunDisplay) -> Subject:
        """The ensemble of a cell on its device, prepared once for all rows."""
        number = next(number for number, part in enumerate(self.work) if cell in part.cells)
        if number not in subjects:
            part = self.work[number]
            samples = max(cell.images.samples for row in self.rows for cell in row.cells)
            material = material_of(part, self.request, samples)
            subjects[number] = stack.enter_context(subject_of(material, say=display.say))
        return subjects[number]

    def _look(self, row: _Row, display: RunDisplay) -> None:
        """Test a row, and close it if it is settled or has no more images."""
        if row.closed or not row.done:
            return
        outcomes = [self._outcomes(cell, row) for cell in row.cells]
        settled = self.rule.settled(outcomes)
        row.closed = settled or row.done == len(row.spans)
        title = row.cells[0].task.title if len(row.cells) > 1 else row.cells[0].title
        if row.closed:
            left = sum(not other.closed for other in self.rows)
            word = "settled" if settled else "open"
            display.say(f"{title}: {word} after {row.images} images; {left} of {len(self.rows)} rows continue")

    def _outcomes(self, cell: Cell, row: _Row) -> Outcomes:
        found = [self.parts[cell][span]["p_correct"].to_numpy(dtype=float) for span in row.spans[: row.done]]
        return np.concatenate(found)


def _rows(work: Iterable[Work], together: bool) -> list[_Row]:
    """The table rows with attacks: all cells of a row together, or each cell alone."""
    found: dict[Line | Cell, list[Cell]] = {}
    for part in work:
        for cell in part.cells:
            if _may_stop(cell):
                found.setdefault(cell.line if together else cell, []).append(cell)
    return [_Row(cells) for cells in found.values()]


def _counted(rule: Decided, rows: list[_Row], store: Store) -> Decided:
    """The rule with the number of comparisons that share its level, including comparisons of earlier commands."""
    lines = {cell.line for row in rows for cell in row.cells}
    lines |= {cell.line for cell in store.asked() if _may_stop(cell)}
    references = max((len(row.cells) - 1 for row in rows), default=1)
    before = read_until(store).get("planned", {})
    planned = {row.cells[0].series: row.spans[-1].end for row in rows}
    return rule.over(len(lines), references, {**before, **planned})


def _may_stop(cell: Cell) -> bool:
    """Whether the cell has an attack and is part of the tables."""
    return bool(cell.task.attacks) and cell.task.in_tables
