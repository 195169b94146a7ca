"""A stored file is believed only if it is what was written: whatever else it holds is noticed."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy

from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell
from benchmark.cells.codec import to_json
from benchmark.cells.record_files import CELL, Damaged, read_records, write_records
from benchmark.cells.store import MANIFEST, Store
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.harness.records import Span
from defenses.errors import BadInput

MakeCell = Callable[..., Cell]
MakeRecords = Callable[[Cell, dict[str, Any]], pd.DataFrame]


def _task(text: str) -> WhiteBox:
    return WhiteBox(parse_attack(text), "strict")


@pytest.fixture
def cell(make_cell: MakeCell) -> Cell:
    return make_cell(_task("pgd(eps=0.1)"), samples=24, batch_size=8)


@pytest.fixture
def other(make_cell: MakeCell) -> Cell:
    return make_cell(_task("bim(eps=0.1)"), samples=24, batch_size=8)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "run")
    store.open("demo")
    return store


def _columns(seed: int = 0) -> dict[str, Any]:
    draws = np.random.default_rng(seed)
    return {"correct": draws.random(24) < 0.5, "linf": draws.random(24), "adversarial_prediction": np.arange(24) % 10}


def test_no_flipped_bit_changes_what_is_read(tmp_path: Path, cell: Cell, make_records: MakeRecords) -> None:
    path = tmp_path / "cell.parquet"
    write_records(path, cell, make_records(cell, _columns()), "abc")
    content, wanted = path.read_bytes(), read_records(path, cell, Span(0, 24))
    noticed = 0
    for place in random.Random(0).sample(range(8 * len(content)), 600):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            pd.testing.assert_frame_equal(read_records(path, cell, Span(0, 24)), wanted)
        except Damaged:
            noticed += 1
    assert noticed > 300, "what is not noticed lies in bytes that nobody reads"


def test_swapped_files_are_noticed(store: Store, cell: Cell, other: Cell, make_records: MakeRecords) -> None:
    for one in (cell, other):
        store.write(one, make_records(one, _columns()))
    first, second = store.path(cell), store.path(other)
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    for one in (cell, other):
        with pytest.raises(Damaged, match="another cell"):
            store.read(one)


CHANGES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "rows are missing": lambda records: records.head(5),
    "rows are doubled": lambda records: pd.concat([records, records], ignore_index=True),
    "a row takes the place of another": lambda records: records.iloc[[0, *range(23)]].reset_index(drop=True),
    "rows are in another order": lambda records: records.iloc[::-1].reset_index(drop=True),
    "fields are empty": lambda records: records.assign(correct=[None, *[True] * 23]),
    "a column is gone": lambda records: records.drop(columns="correct"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_without_a_checksum_must_still_have_the_rows_of_its_cell(
    name: str, store: Store, cell: Cell, make_records: MakeRecords
) -> None:
    """As the first version wrote them, or somebody by hand."""
    table = pa.Table.from_pandas(CHANGES[name](make_records(cell, _columns())), preserve_index=False)
    pq.write_table(table.replace_schema_metadata({CELL: json.dumps(to_json(cell))}), store.path(cell))
    with pytest.raises(Damaged):
        store.read(cell)


def test_a_file_that_was_edited_does_not_match_its_checksum(
    store: Store, cell: Cell, make_records: MakeRecords
) -> None:
    store.write(cell, make_records(cell, {"correct": False}))
    table = pq.read_table(store.path(cell))
    place = table.schema.get_field_index("correct")
    edited = table.set_column(place, "correct", pa.array([True] * 24))
    pq.write_table(edited.replace_schema_metadata(table.schema.metadata), store.path(cell))
    with pytest.raises(Damaged, match="checksum"):
        store.read(cell)


def test_progress_of_another_attack_or_of_other_rows_is_not_used(
    store: Store, cell: Cell, other: Cell, make_records: MakeRecords
) -> None:
    for one in (cell, other):
        store.write_batch(one, 0, make_records(one, _columns()).head(8))
    (mine,), (theirs,) = (list(store._progress(one).glob("*.parquet")) for one in (cell, other))
    shutil.copy(theirs, mine)
    assert store.batches(cell) == {} and mine.with_suffix(".damaged").is_file()
    store.write_batch(cell, 0, make_records(cell, _columns()).head(8))
    mine.rename(mine.with_name("000008-000016.parquet"))
    assert store.batches(cell) == {}
    assert len(store.batches(other)) == 1


def test_a_folder_with_a_colon_in_its_name_is_no_address(
    tmp_path: Path, cell: Cell, make_records: MakeRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(Path("s3:mine"))
    store.open("demo")
    store.write(cell, make_records(cell, _columns()))
    assert len(store.read(cell)) == 24 and store.pictures(cell) is None
    assert Store(Path("s3:mine"))._index[cell.series] == [cell]


def test_no_flipped_bit_changes_what_a_manifest_says(store: Store, cell: Cell) -> None:
    store.write_manifest([cell], {"preset": "demo", "title": "By hand", "commands": []})
    path, wanted = store.folder / MANIFEST, store.manifest()
    content, draws = path.read_bytes(), random.Random(0)
    for place in draws.sample(range(len(content)), 300):
        spoiled = bytearray(content)
        spoiled[place] ^= 1 << draws.randrange(8)
        path.write_bytes(spoiled)
        with contextlib.suppress(BadInput):
            found = store.manifest()  # a flip in the name of the checksum leaves the rest as it was
            assert {name: found[name] for name in wanted} == wanted


def test_a_reason_that_is_no_text_is_shown_all_the_same(store: Store, cell: Cell) -> None:
    store._failure(cell).write_bytes(b"ValueError: \xff")
    assert str(store.failure(cell)).startswith("ValueError")


def test_damaged_images_of_a_cell_are_read_or_named_with_the_remedy(store: Store, cell: Cell) -> None:
    content = safetensors.numpy.save(
        {"index": np.arange(3), "images": np.zeros((3, 1, 4, 4), dtype=np.float32), "more": np.zeros(2)}
    )
    path = store.images_path(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    for end in range(0, len(content), 7):
        path.write_bytes(content[:end])
        with pytest.raises(BadInput, match="delete it and run again"):
            store.images(cell)
    refusals = []
    for place in range(0, 8 * len(content), 5):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            store.images(cell)
        except BadInput as error:
            refusals.append(str(error))
    assert len(refusals) > 100 and all(str(path) in words for words in refusals), "the header of the file is checked"
