"""Everything a reader sees, made from the store alone: the same store gives the same bytes."""

from __future__ import annotations

from benchmark.reports.tables import write_tables
from benchmark.store import Store


def write_report(store: Store) -> None:
    """Write every table of a run folder."""
    write_tables(store)
