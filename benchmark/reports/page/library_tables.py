"""Tables of a cross-check on the page: one row per library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from benchmark.findings import crosscheck, naming
from benchmark.reports.page.widgets import NOTHING, Field, Heading, Table, number_field
from benchmark.reports.tables.crosschecks import number


def library_tables(compared: pd.DataFrame) -> list[Table]:
    """A table per dataset and defense, a row per attack and library; the details of a number appear on hover."""
    columns = [
        Heading("attack, library", number=False, heads=True),
        Heading("accuracy", "under attack"),
        Heading("same outcome", "as the default"),
        Heading("same class", "as the default"),
        Heading("milliseconds", "per image"),
        Heading("cost", "× default"),
        Heading("verdict", number=False),
    ]
    tables = []
    keys = ["dataset", "defense", "tier", "seed"]
    for (dataset, defense, tier, seed), part in compared.groupby(keys, sort=False):
        rows = [[*_library_fields(row)] for row in part.to_dict("records")]
        settings = list(zip(part["attack"], part["parameters"], strict=True))
        breaks = {place for place, setting in enumerate(settings) if setting not in settings[:place]}
        where = f"{naming.defense(str(defense))} on {naming.dataset(str(dataset))}, tier {tier}"
        caption = f"{where}{f', seed {seed}' if seed else ''}: a row per library"
        tables.append(Table(caption, columns, rows, frozenset(breaks)))
    return tables


def _library_fields(row: dict[Any, Any]) -> Iterator[Field]:
    name = f"{naming.attack(row['attack'])}, {row['library']}"
    settings = naming.settings(row["parameters"])
    yield Field(name, settings, f"{name} {settings}")
    if row["samples"]:
        accuracy = number_field(f"{row['accuracy']:.1f}", f"{row['ci_low']:.1f} to {row['ci_high']:.1f}")
        yield replace(accuracy, more=tuple(_behind(row)), tint=row["accuracy"])
    else:
        yield Field(NOTHING)
    yield Field(number(row["same_outcome"], "{:.0f} %"))
    yield Field(number(row["same_class"], "{:.0f} %"))
    seconds = row["seconds"]
    yield Field(number(None if pd.isna(seconds) else 1000 * seconds, "{:.1f}"))
    yield Field(number(row["cost"], "{:.1f}"))
    yield Field(row["verdict"])


def _behind(row: dict[Any, Any]) -> Iterator[str]:
    """The details of a number: images, sizes of the perturbations, repairs and model passes."""
    yield f"95 % interval {row['ci_low']:.1f} to {row['ci_high']:.1f}, {row['samples']} test images"
    yield f"mean perturbation of successes: L2 {number(row['l2'], '{:.3f}')}, L∞ {number(row['linf'], '{:.3f}')}"
    yield f"largest pixel difference from the default: {number(row['pixel_difference'], '{:.2g}')}"
    yield ", ".join(f"{name.replace('_', ' ')}: {number(row[name], '{:.0f}')}" for name in crosscheck.COUNTS)
    passes = [number(row[name], "{:.1f}") for name in ("forwards", "backwards")]
    yield f"{passes[0]} forward and {passes[1]} backward passes per image"
