"""A progress bar for work in batches; on a terminal it appears after two seconds."""

from __future__ import annotations

import time
from threading import Timer

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmark.machine.clock import clock
from benchmark.machine.terminal import visible

PATIENCE = 2.0
"""Seconds before a bar appears by default."""
QUIET = 30.0
"""Seconds between two lines about one part."""


class BatchBar:
    """Progress on standard error: a bar on a terminal or in a notebook; elsewhere, if wanted, one line per part.

    ``wanted``: True shows progress at once, False never, and None shows a bar after two seconds, only on a terminal.
    """

    def __init__(self, wanted: bool | None) -> None:
        console = Console(stderr=True, highlight=False, emoji=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn())
        self.bars = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self.task = self.bars.add_task("", total=None)
        live = console.is_terminal or (console.is_jupyter and wanted is True)
        self.timer = Timer(0 if wanted else PATIENCE, self.bars.start) if live and wanted is not False else None
        self.lines = wanted is True and not live
        self.title, self.began, self.begun = "", 0.0, False
        self.last_line = time.monotonic() - QUIET + PATIENCE

    def __enter__(self) -> BatchBar:
        if self.timer:
            self.timer.daemon = True
            self.timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer.join()
            self.bars.stop()

    def begin(self, title: str) -> None:
        """Begin a part of the work, with its title."""
        self.title, self.began = visible(title), time.monotonic()
        self.bars.update(self.task, description=self.title)
        if self.lines and not self.begun:
            self.begun = True
            self.bars.console.print(self.title, soft_wrap=True, markup=False)

    def expect(self, batches: int) -> None:
        """Set the total number of batches."""
        self.bars.update(self.task, total=batches)

    def report(self, words: str) -> None:
        """Show the progress of a part: on the bar, or elsewhere as a line after two seconds and then every 30 s."""
        self.bars.update(self.task, description=visible(words))
        if self.lines and time.monotonic() - self.last_line > QUIET:
            self.last_line = time.monotonic()
            self.bars.console.print(visible(words), soft_wrap=True, markup=False)

    def step(self) -> None:
        """Count a finished batch."""
        self.bars.advance(self.task)

    def end(self) -> None:
        """End the part."""
        if self.lines:
            line = f"{self.title}: {clock(time.monotonic() - self.began)}"
            self.bars.console.print(line, soft_wrap=True, markup=False)
