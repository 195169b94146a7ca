"""The parts of a page: tables with their fields, pictures and warnings, and the format of numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from benchmark.findings import naming

NOTHING = "–"


@dataclass(frozen=True)
class Heading:
    """The heading of a column; columns with ``heads`` contain the names of the rows."""

    title: str
    note: str = ""
    number: bool = True
    heads: bool = False
    derived: bool = False
    """The reader can compute it from the other columns, so it is hidden on a phone."""


@dataclass(frozen=True)
class Field:
    """One field of a table: its text, a smaller note below, and its sort key if that is not the text."""

    text: str
    note: str = ""
    order: str = ""
    bold: bool = False
    more: tuple[str, ...] = ()
    """Lines that are shown when the reader hovers over, taps or focuses the field."""
    tint: float | None = None
    """A value from 0 to 100 that the background shows."""
    flagged: bool = False


@dataclass(frozen=True)
class Table:
    """A table in its initial order; ``breaks`` are the rows that begin a new group."""

    caption: str
    columns: list[Heading]
    rows: list[list[Field]]
    breaks: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A figure with an embedded SVG: nothing is downloaded, and figures do not share identifiers."""

    name: str
    title: str
    words: str
    source: str
    width: int
    """Largest width on the page, in pixels; it makes the letters of all figures about equally large."""
    wide: bool
    """Too wide for half of the page."""
    narrow: str = ""
    """The SVG for a phone; empty if there is none."""


@dataclass(frozen=True)
class Warned:
    """A warning to the reader: a cell that failed or was not run, or a flag."""

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
    """The table without its constant columns; the caption states their values."""
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
    """A data frame as a table, without changes."""
    if frame.empty:
        return None
    numbers = {name: pd.api.types.is_numeric_dtype(frame[name]) for name in frame.columns}
    head = "defense" if "defense" in frame.columns else frame.columns[0]
    names = [head, *(name for name in frame.columns if name != head)]  # the first column stays visible while scrolling
    columns = [Heading(str(name).replace("_", " "), number=numbers[name], heads=name == head) for name in names]
    rows = [[Field(_text(value)) for value in row] for row in frame[names].itertuples(index=False)]
    return Table(caption, columns, rows)


def _text(value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)) or value == "":
        return NOTHING
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
