"""``adp-bench report``: make the tables, figures and page of a run folder again, from its cells alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmark.machine.terminal import visible


def report(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")]) -> None:
    """Write every table, figure and the page of a run again, from what is stored; no model is touched."""
    from benchmark.cells.store import Store
    from benchmark.reports import write_report
    from benchmark.run.display import RunDisplay

    display = RunDisplay()
    store = Store(folder)
    store.manifest()  # a folder without a run is refused before anything is written in it
    try:
        with store.only_writer(display.say):
            write_report(store, display.writing)
    finally:
        display.stop()
    typer.echo(visible(folder / "report.html"))
