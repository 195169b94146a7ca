"""``adp-bench report``: write the tables, figures and report of a run again, from its stored cells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmark.machine.terminal import visible

FIGURES = "Also write every figure as a PDF file."


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    figures: Annotated[str, typer.Option(metavar="pdf", help=FIGURES)] = "",
    defense: Annotated[
        list[str] | None,
        typer.Option(help="Show only this defense. May be repeated; the order sets the columns."),
    ] = None,
) -> None:
    """Write tables, figures and report.html again. They come from the stored results of a run; no model is loaded."""
    from benchmark.cells.store import Store
    from benchmark.reports import write_report
    from benchmark.reports.figures.drawing import check_kind
    from benchmark.run.display import RunDisplay

    check_kind(figures)
    display = RunDisplay()
    store = Store(folder)
    store.manifest()  # a folder without a run is refused before anything is written in it
    try:
        with store.only_writer(display.say):
            write_report(store, display.writing, figures, defense or ())
    finally:
        display.stop()
    typer.echo(visible(folder / "report.html"))
