"""Files of records: each names its cell, and a checksum detects every change."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmark.cells.cell import Cell
from benchmark.cells.codec import from_json, to_json
from benchmark.harness.records import RECORDS, Span
from defenses.errors import BadInput
from defenses.files import write_bytes

CELL, COMMIT, CHECKSUM = b"adp-benchmark", b"commit", b"sha256"
"""Entries of a file's metadata."""
UNREADABLE = (OSError, pa.ArrowException, MemoryError, OverflowError, ValueError, KeyError, TypeError)
"""Exceptions that reading a damaged file may raise."""


class Damaged(BadInput):
    """A file of records was changed after it was written, or is unreadable."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged ({reason}); run the preset again to measure it anew")
        self.path, self.reason = path, reason


def write_records(path: Path, cell: Cell, records: pd.DataFrame, commit: str) -> None:
    """Write records with their cell and a checksum of both."""
    _write(path, cell, _read_back(pa.Table.from_pandas(records, preserve_index=False)), commit)  # as readers get it


def _write(path: Path, cell: Cell, table: pa.Table, commit: str) -> None:
    described = json.dumps(to_json(cell))
    metadata = {CELL: described, CHECKSUM: _checksum(table, described, commit)} | ({COMMIT: commit} if commit else {})
    write_bytes(path, _parquet(table.replace_schema_metadata(metadata)))  # in memory first: a full disk fails plainly


def read_cell(path: Path) -> Cell:
    """The cell that a file names, without its records."""
    try:
        return from_json(json.loads(_schema(path).metadata[CELL]))
    except UNREADABLE as error:
        raise Damaged(path, _reason(error)) from None


def columns_of(path: Path) -> list[str]:
    """The names of a file's columns."""
    try:
        return _schema(path).names
    except UNREADABLE as error:
        raise Damaged(path, _reason(error)) from None


def read_commit(path: Path) -> str:
    """The commit of the code that wrote a file; empty if the file has none."""
    try:
        return (_schema(path).metadata or {}).get(COMMIT, b"").decode()
    except UNREADABLE as error:
        raise Damaged(path, _reason(error)) from None


def read_records(path: Path, cell: Cell, span: Span) -> pd.DataFrame:
    """The records of some rows of a cell; raises `Damaged` if the file has other content."""
    try:
        with path.open("rb") as file:  # a path with a colon would be read as a URI
            table = pq.read_table(file)
        metadata = table.schema.metadata or {}
        described = metadata[CELL].decode()
        found = from_json(json.loads(described))
        commit = metadata.get(COMMIT, b"").decode()
        if CHECKSUM in metadata and metadata[CHECKSUM].decode() != _checksum(table, described, commit):
            raise Damaged(path, "its content does not match its checksum")
        records = table.to_pandas()
    except Damaged:
        raise
    except UNREADABLE as error:
        raise Damaged(path, _reason(error)) from None
    if found.series != cell.series:
        raise Damaged(path, f"it is of another cell: {found.title}")
    fault = _fault(records, span)
    if fault:
        raise Damaged(path, fault)
    return records


def rename_records(path: Path, other: Path, cell: Cell) -> None:
    """Copy a file of records to another path, with the new name of the cell's defense."""
    with path.open("rb") as file:
        table = pq.read_table(file)
    commit = (table.schema.metadata or {}).get(COMMIT, b"").decode()
    _write(other, cell, table, commit)


def _fault(records: pd.DataFrame, span: Span) -> str:
    """The error in the rows of a file, in words; empty if there is none."""
    if len(records) != span.size:
        return f"it has {len(records)} rows instead of {span.size}"
    needed = [column for column in RECORDS.columns if column.default is None and column.name in records]
    missing = {"index", "label", "clean_prediction", "correct"} - {column.name for column in needed}
    if missing:
        return f"it has no column {' and '.join(sorted(missing))}"
    if not np.array_equal(records["index"].to_numpy(), np.arange(span.first, span.end)):
        return f"its rows are not images {span.first} to {span.end - 1}"
    empty = [column.name for column in needed if records[column.name].isna().any()]
    return f"its column {empty[0]} has empty fields" if empty else ""


def _schema(path: Path) -> pa.Schema:
    with path.open("rb") as file:
        return pq.read_schema(file)


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _parquet(table: pa.Table) -> bytes:
    written = io.BytesIO()
    pq.write_table(table, written, compression="zstd")
    return written.getvalue()


def _read_back(table: pa.Table) -> pa.Table:
    return pq.read_table(io.BytesIO(_parquet(table)))


def _checksum(table: pa.Table, described: str, commit: str) -> str:
    """sha256 of a file's description and of the table's content, in Arrow's stream format."""
    plain = table.replace_schema_metadata(None).combine_chunks()
    stream: Any = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, plain.schema) as writer:
        writer.write_table(plain)
    return hashlib.sha256(f"{described} {commit}".encode() + stream.getvalue().to_pybytes()).hexdigest()
