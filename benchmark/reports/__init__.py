"""Everything a reader sees, made from the store alone: the same store gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable

from benchmark.comparison import write_comparison
from benchmark.diagnostics import Diagnosis
from benchmark.reports.crosscheck import crosscheck_figures, write_crosscheck
from benchmark.reports.curves import curve_figures
from benchmark.reports.detection import detection_figures, detection_table
from benchmark.reports.diversity import diversity_figures
from benchmark.reports.figures import keep
from benchmark.reports.page import write_page
from benchmark.reports.strip import strip_figures
from benchmark.reports.strong import gap_figures, gap_table, suite_table
from benchmark.reports.tables import read_rows, write_tables
from benchmark.reports.transfer import transfer_figures, transfer_table
from benchmark.store import Store
from defenses.files import write_text


def write_report(store: Store, say: Callable[[str], None] = lambda words: None) -> Diagnosis:
    """Write every table and figure of a run folder, and the page that holds them all; what the checks found."""
    say("reading and checking the cells")
    rows = read_rows(store)
    say("writing the tables")
    write_tables(store, rows)
    write_comparison(store)
    tables = {
        "gap": gap_table(rows),
        "strong": suite_table(store),
        "transfer": transfer_table(store),
        "detection": detection_table(store),
    }
    for name, table in tables.items():
        path = store.folder / f"{name}.csv"
        if table.empty:
            path.unlink(missing_ok=True)  # of weights that are gone
        else:
            write_text(path, table.to_csv(index=False, lineterminator="\n"))
    say("drawing the figures")
    figures = [
        *crosscheck_figures(write_crosscheck(store)),
        *gap_figures(rows),
        *curve_figures(rows.cells, rows.table),
        *transfer_figures(store),
        *detection_figures(store),
        *diversity_figures(store),
        *strip_figures(store, rows.cells),
    ]
    keep(store.folder / "figures", figures, say)
    say("writing the page")
    write_page(store, figures)
    return rows.diagnosis
