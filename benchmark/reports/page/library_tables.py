"""Tables of a cross-check on the page: one row per library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from benchmark.findings import crosscheck
from benchmark.reports.page.widgets import NOTHING, Field, Heading, Table, attack_field, number_field
from benchmark.reports.tables.crosschecks import number


def library_tables(compared: pd.DataFrame) -> list[Table]:
    """A table per dataset and defense, a row per attack and library."""
    columns = [
        Heading("attack, library", number=False, heads=True),
        Heading("accuracy", "under attack"),
        Heading("same", "outcome"),
        Heading("verdict", number=False),
        Heading("images"),
        Heading("same", "class"),
        Heading("pixel", "difference"),
        Heading("L2", "of successes"),
        Heading("L∞", "of successes"),
        *(Heading(name.replace("_", " ")) for name in crosscheck.COUNTS),
        Heading("forwards", "per image"),
        Heading("backwards", "per image"),
        Heading("seconds", "per image"),
        Heading("cost", "× default"),
    ]
    tables = []
    keys = ["dataset", "defense", "tier", "seed"]
    for (dataset, defense, tier, seed), part in compared.groupby(keys, sort=False):
        rows = [[*_library_fields(row)] for row in part.to_dict("records")]
        settings = list(zip(part["attack"], part["parameters"], strict=True))
        breaks = {place for place, setting in enumerate(settings) if setting not in settings[:place]}
        caption = f"{defense} on {dataset}, tier {tier}{f', seed {seed}' if seed else ''}: one row per library"
        tables.append(Table(caption, columns, rows, frozenset(breaks)))
    return tables


def _library_fields(row: dict[Any, Any]) -> Iterator[Field]:
    yield attack_field(f"{row['attack']}, {row['library']}", row["parameters"])
    if row["samples"]:
        yield number_field(f"{row['accuracy']:.1f}", f"{row['ci_low']:.1f} to {row['ci_high']:.1f}")
    else:
        yield Field(NOTHING)
    yield Field(number(row["same_outcome"], "{:.0f} %"))
    yield Field(row["verdict"])
    yield Field(str(row["samples"]))
    yield Field(number(row["same_class"], "{:.0f} %"))
    yield Field(number(row["pixel_difference"], "{:.2g}"))
    for norm in ("l2", "linf"):
        yield Field(number(row[norm], "{:.3f}"))
    for count in crosscheck.COUNTS:
        yield Field(number(row[count], "{:.0f}"))
    for passes in ("forwards", "backwards"):
        yield Field(number(row[passes], "{:.1f}"))
    yield Field(number(row["seconds"], "{:.4f}"))
    yield Field(number(row["cost"], "{:.1f}"))
