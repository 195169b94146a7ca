"""Progress of a fetch on standard error: the current step and the received bytes."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from benchmark.machine.terminal import visible

if TYPE_CHECKING:
    from rich.progress import TaskID


class Display:
    """On a terminal, one live line with spinner, bytes and time; elsewhere, one plain line per step."""

    def __init__(self, enabled: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True, quiet=not enabled, soft_wrap=True, emoji=False)
        self._live = enabled and self._console.is_terminal
        text, arrived = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[arrived]"))
        columns = (SpinnerColumn(), text, BarColumn(20), arrived, TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, transient=True, disable=not self._live)
        self._task: TaskID | None = None
        self.total = self._bytes = 0

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        """Print a permanent line."""
        self._console.print(visible(text), markup=False, highlight=False)

    def step(self, text: str) -> None:
        """Show the current step."""
        if not self._live:
            self.note(text)
            return
        if self._task is not None:
            self._progress.remove_task(self._task)
        self.total = self._bytes = 0
        self._task = self._progress.add_task(visible(text), total=None, arrived="")

    def update(self, amount: int) -> None:
        """Add received bytes."""
        if self._task is not None:
            self._bytes += amount
            arrived = f"{self._bytes / 1e6:.1f} of {self.total / 1e6:.1f} MB" if self.total else ""
            self._progress.update(self._task, total=self.total or None, advance=amount, arrived=arrived)
