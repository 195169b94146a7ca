"""The progress of a run: one line per finished cell, a bar per running cell, and the time left for the grid."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.findings.diagnostics import Diagnosis
from benchmark.machine.clock import clock
from benchmark.machine.terminal import visible
from benchmark.plan.costs import work

QUIET = 30
"""Without a terminal, a running cell gets a line after this many seconds without a line."""


@dataclass
class _Open:
    """A running cell."""

    number: int
    began: float
    bar: TaskID
    share: float = 0.0
    """Cost of its finished images."""


class RunDisplay:
    """Writes to standard error; on a terminal, running cells have live lines."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, emoji=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn())
        left = TextColumn("{task.fields[left]}", markup=False)
        self.bars = Progress(*columns, left, console=self.console, transient=True)
        self.status = self.console.status("")
        self.open: dict[Cell, _Open] = {}
        self.total = self.number = 0
        self.costs: dict[Cell, float] = {}
        """Cost of each cell that was open at `start`."""
        self.cost_left = self.cost_done = 0.0
        self.began = self.last_line = time.monotonic()

    def say(self, line: str, style: str | None = None) -> None:
        self.console.print(visible(line), style=style, soft_wrap=True, markup=False)

    def start(self, open_cells: list[Cell], cells: list[Cell]) -> None:
        total = self.total = len(cells)
        self.number = total - len(open_cells)
        # times members: a gradient of a larger ensemble costs more
        self.costs = {cell: work(cell, cells) * cell.ensemble.members for cell in open_cells}
        self.cost_left = sum(self.costs.values())
        self.began = time.monotonic()
        if self.number:
            self.say(f"{self.number} of {total} cells are done already")
        if self.console.is_terminal:
            self.bars.start()
        elif open_cells:
            self.say(f"running {len(open_cells)} cell{'s' * (len(open_cells) != 1)}")

    def begin(self, cell: Cell) -> None:
        self.number += 1
        self.last_line = time.monotonic()
        bar = self.bars.add_task("", total=cell.images.samples, left="")
        self.open[cell] = _Open(self.number, time.monotonic(), bar)
        self.bars.update(bar, description=visible(self._place(cell)))

    def advance(self, cell: Cell, rows: int) -> None:
        under_way = self.open[cell]
        under_way.share = self.costs.get(cell, 0.0) * rows / cell.images.samples
        self.bars.update(under_way.bar, completed=rows, left=self.time_left())
        if not self.console.is_terminal and time.monotonic() - self.last_line > QUIET:
            self.last_line = time.monotonic()
            self.say(f"{self._place(cell)}: {rows} of {cell.images.samples} images, {self.time_left()}")

    def report(self, words: str, cell: Cell | None = None) -> None:
        """Show the current step of a cell; by default, of the cell that began last."""
        cell = cell or next(reversed(self.open), None)
        if cell not in self.open:
            return
        line = f"{self._place(cell)} · {words}"
        self.bars.update(self.open[cell].bar, description=visible(line))
        if not self.console.is_terminal and time.monotonic() - self.last_line > QUIET:
            self.last_line = time.monotonic()
            self.say(line)

    def time_left(self) -> str:
        under_way = sum(cell.share for cell in self.open.values())
        done = self.cost_done + under_way
        if not done:
            return ""
        elapsed = time.monotonic() - self.began
        return f"{clock(elapsed / done * (self.cost_left - under_way))} left"

    def done(self, cell: Cell, row: dict[str, Any]) -> None:
        place, seconds = self._close(cell)
        interval = f"{row['accuracy']:.1f} % ({row['ci_low']:.1f}–{row['ci_high']:.1f})"
        beside = f", published {row['published']:.1f}" if row["published"] is not None else ""
        self.say(f"{place}: {interval}{beside}, {clock(seconds)}, {self.time_left()}")
        if row["flags"]:
            self.say(f"  warning: {row['flags']}", style="yellow")

    def failed(self, cell: Cell, words: str) -> None:
        place, _ = self._close(cell)
        self.say(f"{place}: failed: {words}", style="red")

    def finish(self, store: Store, diagnosis: Diagnosis) -> None:
        self.stop()
        self.say(f"checks: {diagnosis.summary}")
        for name in dict.fromkeys(flag.name for flag in diagnosis.flags):
            first, *more = [flag for flag in diagnosis.flags if flag.name == name]
            others = f" (and {len(more)} more)" if more else ""
            self.say(f"  {name}, {first.where}: {first.words}{others}. {first.advice}", style="yellow")
        self.say(f"tables: {store.folder / 'table.md'} and table.csv, table.tex")
        self.say(f"report: {store.folder / 'report.html'}")

    def writing(self, words: str) -> None:
        """Show the progress of the report: a live line on a terminal, elsewhere a line at most every ten seconds."""
        if self.console.is_terminal:
            if self.bars.live.is_started:
                self.bars.stop()
            self.status.update(Text(visible(words)))
            self.status.start()
        elif time.monotonic() - self.last_line > 10:
            self.last_line = time.monotonic()
            self.say(words)

    def stop(self) -> None:
        self.status.stop()
        if self.bars.live.is_started:  # stopping bars that never started prints an empty line
            self.bars.stop()

    def _close(self, cell: Cell) -> tuple[str, float]:
        """Close a cell; return its place and its duration in seconds."""
        place, closed = self._place(cell), self.open.pop(cell)
        self.cost_done += self.costs.get(cell, 0.0)
        self.cost_left -= self.costs.get(cell, 0.0)
        self.bars.remove_task(closed.bar)
        return place, time.monotonic() - closed.began

    def _place(self, cell: Cell) -> str:
        return f"[{self.open[cell].number}/{self.total}] {cell.title}"
