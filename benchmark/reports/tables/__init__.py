"""Tables: table.csv, tidy, and table.md and table.tex in the paper's layout."""

from __future__ import annotations

from pathlib import Path

from benchmark.findings.layout import Layout
from benchmark.reports import escaping
from benchmark.reports.tables.latex import latex
from benchmark.reports.tables.markdown import markdown
from benchmark.reports.tables.notes import notes_of
from defenses.files import write_text


def write_tables(folder: Path, layout: Layout) -> None:
    """Write table.csv, table.md and table.tex."""
    title, notes = layout.results.title, notes_of(layout)
    write_text(folder / "table.csv", escaping.csv(layout.table))
    write_text(folder / "table.md", markdown(layout, title, notes))
    write_text(folder / "table.tex", latex(layout, title, notes))
