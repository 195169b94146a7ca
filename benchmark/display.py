"""What a run shows while it works: one line per cell, a bar inside it, and the time left for the grid."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from benchmark.cells import Cell
from benchmark.diagnostics import Diagnosis
from benchmark.store import Store
from benchmark.training import clock


class RunDisplay:
    """Writes to standard error; on a terminal the line of the current cell is live."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn())
        self.bars = Progress(*columns, TextColumn("{task.fields[left]}"), console=self.console, transient=True)
        self.task = self.bars.add_task("", total=None, left="", visible=False)
        self.total = self.number = 0
        self.cost_left = self.cost_done = 0.0
        self.current = 0.0
        self.place = ""
        self.began = self.cell_began = self.last_line = time.monotonic()

    def say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, markup=False)

    def start(self, open_cells: list[Cell], total: int) -> None:
        self.total = total
        self.number = total - len(open_cells)
        self.cost_left = sum(map(cost, open_cells))
        self.began = time.monotonic()
        if self.number:
            self.say(f"{self.number} of {total} cells are done already")
        if self.console.is_terminal:
            self.bars.start()

    def begin(self, cell: Cell) -> None:
        self.number += 1
        self.current = 0.0
        self.cell_began = self.last_line = time.monotonic()
        self.place = self._place(cell)
        self.bars.update(self.task, description=self.place, completed=0, total=cell.samples, visible=True)

    def advance(self, cell: Cell, rows: int) -> None:
        share = cost(cell) * rows / cell.samples
        self.current = share
        self.bars.update(self.task, completed=rows, left=self.time_left())
        if not self.console.is_terminal and time.monotonic() - self.last_line > 30:
            self.last_line = time.monotonic()
            self.say(f"{self._place(cell)}: {rows} of {cell.samples} images, {self.time_left()}")

    def report(self, words: str) -> None:
        """What is being done inside the current cell."""
        self.bars.update(self.task, description=f"{self.place} · {words}")

    def time_left(self) -> str:
        done = self.cost_done + self.current
        if not done:
            return ""
        elapsed = time.monotonic() - self.began
        return f"{clock(elapsed / done * (self.cost_left - self.current))} left"

    def done(self, cell: Cell, row: dict[str, Any]) -> None:
        self._close(cell)
        interval = f"{row['accuracy']:.1f} % ({row['ci_low']:.1f}–{row['ci_high']:.1f})"
        beside = f", published {row['published']:.1f}" if row["published"] is not None else ""
        seconds = time.monotonic() - self.cell_began
        self.say(f"{self._place(cell)}: {interval}{beside}, {clock(seconds)}, {self.time_left()}")
        if row["flags"]:
            self.console.print(f"  warning: {row['flags']}", style="yellow", soft_wrap=True, markup=False)

    def failed(self, cell: Cell, error: Exception) -> None:
        self._close(cell)
        words = " ".join(f"{type(error).__name__}: {error}".split())
        self.console.print(f"{self._place(cell)}: failed: {words}", style="red", soft_wrap=True, markup=False)

    def finish(self, store: Store, diagnosis: Diagnosis) -> None:
        self.stop()
        self.say(f"checks: {diagnosis.summary}")
        for name in dict.fromkeys(flag.name for flag in diagnosis.flags):
            first, *more = [flag for flag in diagnosis.flags if flag.name == name]
            others = f" (and {len(more)} more)" if more else ""
            words = f"  {name}, {first.where}: {first.words}{others}. {first.advice}"
            self.console.print(words, style="yellow", soft_wrap=True, markup=False)
        self.say(f"tables: {store.folder / 'table.md'} and table.csv, table.tex")
        self.say(f"report: {store.folder / 'report.html'}")

    def stop(self) -> None:
        if self.bars.live.is_started:  # stopping bars that never started prints an empty line
            self.bars.stop()

    def _close(self, cell: Cell) -> None:
        self.cost_done += cost(cell)
        self.cost_left -= cost(cell)
        self.current = 0.0
        self.bars.update(self.task, visible=False)

    def _place(self, cell: Cell) -> str:
        return f"[{self.number}/{self.total}] {cell.title}"


def cost(cell: Cell) -> float:
    """Relative cost of a cell: gradients per image times images."""
    steps = {"jsma": 150.0, "worst-case": 500.0}.get(cell.attack) or float(cell.settings.get("steps", 1))
    return steps * cell.samples * cell.members
