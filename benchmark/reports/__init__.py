"""Reports: tables, figures and pages, made from findings alone. The same cells give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmark.cells.store import Store
from benchmark.findings.comparison import comparison_of
from benchmark.findings.crosscheck import crosscheck_table
from benchmark.findings.diagnostics import Diagnosis
from benchmark.findings.diversities import diversity_table
from benchmark.findings.layout import Layout
from benchmark.findings.radii import radius_curves, radius_table
from benchmark.findings.results import read_results
from benchmark.findings.roc_areas import detection_table
from benchmark.findings.seeds import seed_table
from benchmark.findings.suites import suite_table
from benchmark.findings.tier_gap import gap_table
from benchmark.findings.transfer_rates import transfer_table
from benchmark.reports import escaping
from benchmark.reports.figures.curves import curve_figures
from benchmark.reports.figures.diversity_pictures import diversity_figures
from benchmark.reports.figures.drawing import distinct, keep
from benchmark.reports.figures.gap import gap_figures
from benchmark.reports.figures.heatmaps import transfer_figures
from benchmark.reports.figures.library_dots import crosscheck_figures
from benchmark.reports.figures.radius_curves import radius_figures
from benchmark.reports.figures.roc import detection_figures
from benchmark.reports.figures.strips import strip_figures
from benchmark.reports.figures.tier_summary import tier_figures
from benchmark.reports.page import Shown, write_page
from benchmark.reports.tables import write_tables
from benchmark.reports.tables.comparisons import write_comparison
from benchmark.reports.tables.crosschecks import write_crosscheck
from defenses.files import write_text


def write_report(
    store: Store,
    say: Callable[[str], None] = lambda words: None,
    figures_as: str = "",
    defenses: Sequence[str] = (),
) -> Diagnosis:
    """Write every table and figure of a run folder, and the page with all of them; return the diagnosis.

    ``figures_as`` is a file format in addition to SVG and PNG. If ``defenses`` are named, only these are shown, in this
    order.
    """
    say("reading and checking the cells")
    results = read_results(store).of_defenses(defenses)
    layout = Layout(results)
    say("writing the tables")
    write_tables(store.folder, layout)
    comparison = comparison_of(results)
    if comparison:
        write_comparison(store.folder, comparison)
    libraries = crosscheck_table(results)
    write_crosscheck(store.folder, libraries)
    smallest = radius_curves(results)
    tables = {
        "seeds": seed_table(results),
        "gap": gap_table(results),
        "strong": suite_table(results),
        "transfer": transfer_table(results),
        "detection": detection_table(results),
        "diversity": diversity_table(results),
        "radii": radius_table(smallest),
    }
    for name, table in tables.items():
        path = store.folder / f"{name}.csv"
        if table.empty:
            path.unlink(missing_ok=True)  # from an earlier report; the table is empty now
        else:
            write_text(path, escaping.csv(table))
    say("drawing the figures")
    drawn = [
        *crosscheck_figures(libraries),
        *gap_figures(tables["gap"]),
        *tier_figures(layout),
        *curve_figures(layout),
        *radius_figures(smallest),
        *transfer_figures(tables["transfer"]),
        *detection_figures(results, tables["detection"]),
        *diversity_figures(results),
        *strip_figures(results),
    ]
    figures = distinct(drawn)
    keep(store.folder / "figures", figures, say, figures_as)
    say("writing the page")
    write_page(store.folder, Shown(layout, comparison, libraries, tables, figures))
    return results.diagnosis
