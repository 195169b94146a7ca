"""The folder of a run with its report, from cells made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.reports import write_report


@pytest.fixture
def report(make_store: Callable[..., Store]) -> Callable[..., Path]:
    """Write the report of finished cells with their columns, and of cells without a result; the folder it is in."""

    def make(finished: Sequence[tuple[Cell, dict[str, Any]]], others: Sequence[Cell] = (), **manifest: Any) -> Path:
        store = make_store(finished)
        content = {"preset": "demo", "title": "By hand", "commands": [], **manifest}
        store.write_manifest([*store.asked(), *others], content)
        write_report(store)
        return store.folder

    return make
