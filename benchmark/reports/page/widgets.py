"""The parts that a page is made of: tables with their fields, pictures and warnings, and how numbers stand in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from benchmark.findings import naming

NOTHING = "–"


@dataclass(frozen=True)
class Heading:
    """The head of a column; rows are named by the columns that head them."""

    title: str
    note: str = ""
    number: bool = True
    heads: bool = False
    derived: bool = False
    """A reader can compute it from the other columns, so a phone leaves it out."""


@dataclass(frozen=True)
class Field:
    """One field of a table: what it says, a smaller note below, and what it is sorted by where that is not its text."""

    text: str
    note: str = ""
    order: str = ""
    bold: bool = False
    more: tuple[str, ...] = ()
    """Lines that are shown when the field is pointed at, tapped or focused."""
    tint: float | None = None
    """A value from 0 to 100 that the background shows."""
    flagged: bool = False


@dataclass(frozen=True)
class Table:
    """A table in the order in which it is first shown; a break is a row that begins another group."""

    caption: str
    columns: list[Heading]
    rows: list[list[Field]]
    breaks: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A figure with its SVG inside, so that nothing is fetched and no two figures share identifiers."""

    name: str
    title: str
    words: str
    source: str
    width: int
    """Pixels on the page at most, so that letters of all figures are about as large."""
    wide: bool
    """Too wide for half of the page."""
    narrow: str = ""
    """The SVG for a phone, where there is one."""


@dataclass(frozen=True)
class Warned:
    """What a reader must not overlook: a cell that failed or was not run, or a flag."""

    kind: str
    where: str
    words: str
    advice: str


def attack_field(attack: str, parameters: str) -> Field:
    """An attack, sorted by name, then by parameters."""
    name, note = naming.attack(attack), naming.settings(parameters)
    return Field(name, note, f"{name} {note}")


def signed(value: float) -> Field:
    """A difference in points."""
    value = round(value, 1) + 0.0  # no minus zero
    return Field(f"{value:+.1f}".replace("-", "−"), order=f"{value:.1f}")


def accuracy_field(values: pd.Series[float], note: str) -> Field:
    """One accuracy, or the mean of several seeds with their spread."""
    if len(values) == 1:
        return number_field(f"{values.iloc[0]:.1f}", note)
    mean, spread = f"{values.mean():.1f}", f"{values.std(ddof=1):.1f}"
    return Field(f"{mean} ± {spread}", note, mean)


def number_field(text: str, note: str, bold: bool = False) -> Field:
    """A number, sorted by its value."""
    return Field(text, note, text, bold)


def without_constant_columns(table: Table) -> Table:
    """A table whose caption has what all of its rows share."""
    if len(table.rows) < 2:
        return table
    values = [[row[place].text for row in table.rows] for place in range(len(table.columns))]
    same = [len(set(texts)) == 1 and not column.heads for column, texts in zip(table.columns, values, strict=True)]
    shared = [
        f"{column.title} {texts[0]}" for column, texts, one in zip(table.columns, values, same, strict=True) if one
    ]
    if not shared:
        return table

    def kept(parts: list[Any]) -> list[Any]:
        return [part for part, one in zip(parts, same, strict=True) if not one]

    caption = f"{table.caption}. The same in all rows: {', '.join(shared)}"
    return replace(table, caption=caption, columns=kept(table.columns), rows=[kept(row) for row in table.rows])


def plain(caption: str, frame: pd.DataFrame) -> Table | None:
    """A CSV as it is."""
    if frame.empty:
        return None
    numbers = {name: pd.api.types.is_numeric_dtype(frame[name]) for name in frame.columns}
    head = "defense" if "defense" in frame.columns else frame.columns[0]
    names = [head, *(name for name in frame.columns if name != head)]  # what stays in view when the rest scrolls
    columns = [Heading(str(name).replace("_", " "), number=numbers[name], heads=name == head) for name in names]
    rows = [[Field(_text(value)) for value in row] for row in frame[names].itertuples(index=False)]
    return Table(caption, columns, rows)


def _text(value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)) or value == "":
        return NOTHING
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
