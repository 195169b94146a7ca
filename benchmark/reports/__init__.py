"""Everything a reader sees, made from the store alone: the same store gives the same bytes."""

from __future__ import annotations

from benchmark.comparison import write_comparison
from benchmark.reports.curves import curve_figures
from benchmark.reports.detection import detection_figures, detection_table
from benchmark.reports.diversity import diversity_figures
from benchmark.reports.figures import keep
from benchmark.reports.page import write_page
from benchmark.reports.strip import strip_figures
from benchmark.reports.tables import read_rows, write_tables
from benchmark.reports.transfer import transfer_figures, transfer_table
from benchmark.store import Store
from defenses.files import write_text


def write_report(store: Store) -> None:
    """Write every table and figure of a run folder, and the page that holds them all."""
    write_tables(store)
    write_comparison(store)
    for name, table in (("transfer", transfer_table(store)), ("detection", detection_table(store))):
        if not table.empty:
            write_text(store.folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
    cells, rows, _ = read_rows(store)
    figures = [
        *curve_figures(cells, rows),
        *transfer_figures(store),
        *detection_figures(store),
        *diversity_figures(store),
        *strip_figures(store, cells),
    ]
    keep(store.folder / "figures", figures)
    write_page(store, figures)
