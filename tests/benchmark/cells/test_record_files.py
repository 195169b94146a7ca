"""Files of records: what they say of themselves, and the words for everything that may be wrong with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell
from benchmark.cells.codec import to_json
from benchmark.cells.record_files import Damaged, columns_of, read_cell, read_commit, read_records, write_records
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.harness.records import Span

MakeCell = Callable[..., Cell]
MakeRecords = Callable[[Cell, dict[str, Any]], pd.DataFrame]
ALL = Span(0, 12)


@pytest.fixture
def cell(make_cell: MakeCell) -> Cell:
    return make_cell(WhiteBox(parse_attack("pgd(eps=0.1)"), "strict"), samples=ALL.size)


@pytest.fixture
def records(cell: Cell, make_records: MakeRecords) -> pd.DataFrame:
    return make_records(cell, {"correct": [row % 3 == 0 for row in range(ALL.size)]})


@pytest.fixture
def path(tmp_path: Path, cell: Cell, records: pd.DataFrame) -> Path:
    """A sound file, written at commit abc."""
    write_records(tmp_path / "cell.parquet", cell, records, "abc")
    return tmp_path / "cell.parquet"


def _rewrite(path: Path, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    pq.write_table(change(pq.read_table(path)), path, **options)


def _read(path: Path, cell: Cell) -> pd.DataFrame:
    """The records as their schema has them: a file knows no nullable booleans."""
    return cell.task.records.complete(read_records(path, cell, ALL))


# --- what a file says of itself ---


def test_a_file_names_its_cell_its_commit_and_its_checksum(path: Path, cell: Cell, records: pd.DataFrame) -> None:
    """By names that files of earlier versions have too."""
    metadata = pq.read_schema(path).metadata
    assert set(metadata) == {b"adp-benchmark", b"commit", b"sha256"}
    assert json.loads(metadata[b"adp-benchmark"]) == to_json(cell)
    assert metadata[b"commit"] == b"abc" and len(metadata[b"sha256"]) == 64
    assert read_cell(path) == cell and read_commit(path) == "abc" and columns_of(path) == list(records)
    assert _read(path, cell).equals(records)


def test_without_a_commit_nothing_is_said_of_one(tmp_path: Path, cell: Cell, records: pd.DataFrame) -> None:
    path = tmp_path / "cell.parquet"
    write_records(path, cell, records, "")
    assert b"commit" not in pq.read_schema(path).metadata and read_commit(path) == ""
    assert _read(path, cell).equals(records)


def test_a_file_without_any_metadata_has_no_commit(tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    pq.write_table(pa.table({"index": [0]}), path)
    assert read_commit(path) == ""


def test_labels_of_rows_are_no_column(tmp_path: Path, cell: Cell, records: pd.DataFrame) -> None:
    path = tmp_path / "cell.parquet"
    write_records(path, cell, records.set_axis([f"row {row}" for row in range(ALL.size)]), "abc")
    assert columns_of(path) == list(records)
    assert _read(path, cell).equals(records)


def test_the_checksum_is_of_the_content_however_a_file_is_cut_into_pieces(
    path: Path, cell: Cell, records: pd.DataFrame
) -> None:
    _rewrite(path, lambda table: table, row_group_size=5)
    assert pq.ParquetFile(path).num_row_groups == 3
    assert _read(path, cell).equals(records)


@pytest.mark.parametrize("changed", [{b"commit": b"abd"}, {b"sha256": b"0" * 64}])
def test_an_edited_entry_does_not_match_the_checksum(path: Path, cell: Cell, changed: dict[bytes, bytes]) -> None:
    _rewrite(path, lambda table: table.replace_schema_metadata({**table.schema.metadata, **changed}))
    with pytest.raises(Damaged, match=r"\(its content does not match its checksum\); run the preset again"):
        read_records(path, cell, ALL)


# --- what may be wrong, in words ---

READERS: dict[str, Callable[[Path, Cell], object]] = {
    "records": lambda path, cell: read_records(path, cell, ALL),
    "cell": lambda path, cell: read_cell(path),
    "columns": lambda path, cell: columns_of(path),
    "commit": lambda path, cell: read_commit(path),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_was_cut_off_is_damaged_for_every_reader(reader: str, path: Path, cell: Cell) -> None:
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(Damaged, match="Parquet") as caught:
        READERS[reader](path, cell)
    assert caught.value.path == path and caught.value.reason in str(caught.value)


@pytest.mark.parametrize("reader", ["records", "cell"])
@pytest.mark.parametrize("metadata", [None, {}, {b"other": b"1"}, {b"adp-benchmark": b"{"}, {b"adp-benchmark": b"[]"}])
def test_a_file_that_names_no_cell_is_damaged(
    reader: str, metadata: dict[bytes, bytes] | None, path: Path, cell: Cell
) -> None:
    _rewrite(path, lambda table: table.replace_schema_metadata(metadata))
    with pytest.raises(Damaged):
        READERS[reader](path, cell)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "MemoryError"),
        (OverflowError("a size of\n   2**70"), r"a size of 2\*\*70"),
        (pa.ArrowNotImplementedError("no such encoding"), "no such encoding"),
        (OSError("x" * 150 + "y" * 150), "x{150}y{50}"),
        (ValueError(" "), "ValueError"),
    ],
    ids=["MemoryError", "OverflowError", "ArrowNotImplementedError", "OSError", "ValueError"],
)
def test_whatever_reading_raises_is_told_in_one_short_line(
    reader: str, error: Exception, reason: str, path: Path, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged length asks for more memory than there is; a damaged string is no text."""

    def fail(path: Path) -> None:
        raise error

    monkeypatch.setattr(pq, "read_table", fail)
    monkeypatch.setattr(pq, "read_schema", fail)
    with pytest.raises(Damaged, match=rf"is damaged \({reason}\); run the preset again to measure it anew$"):
        READERS[reader](path, cell)


FAULTS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "it has 5 rows instead of 12": lambda records: records.head(5),
    "it has no column clean_prediction and correct and label": lambda records: records.drop(
        columns=["label", "correct", "clean_prediction"]
    ),
    "its rows are not images 0 to 11": lambda records: records.iloc[::-1],
    "its column label has empty fields": lambda records: records.assign(label=[None, *[3] * 11]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_rows_that_are_not_those_of_the_cell_are_told_plainly(
    fault: str, path: Path, cell: Cell, records: pd.DataFrame
) -> None:
    table = pa.Table.from_pandas(FAULTS[fault](records), preserve_index=False)
    pq.write_table(table.replace_schema_metadata({b"adp-benchmark": json.dumps(to_json(cell))}), path)
    with pytest.raises(Damaged, match=rf"\({fault}\)"):
        read_records(path, cell, ALL)


def test_a_file_of_another_cell_is_told_by_its_title(path: Path, make_cell: MakeCell) -> None:
    other = make_cell(WhiteBox(parse_attack("bim(eps=0.1)"), "strict"), samples=ALL.size)
    with pytest.raises(Damaged, match=r"\(it is of another cell: .*pgd\(eps=0\.1\)"):
        read_records(path, other, ALL)
