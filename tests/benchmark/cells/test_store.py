"""The store keeps what is finished, whole or not at all, and never touches what is not its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmark.attacks import parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.cells.codec import to_json
from benchmark.cells.store import MANIFEST, Store
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import WorstCase, read_stage
from benchmark.harness.records import COSTS, JUDGED, Span
from benchmark.harness.subject import Material
from benchmark.machine import hardware
from benchmark.run.display import RunDisplay
from benchmark.run.executors import Failure, Outcome
from benchmark.run.ledger import Ledger
from defenses.errors import BadInput, RunFailed

MakeCell = Callable[..., Cell]
MakeRecords = Callable[[Cell, dict[str, Any]], pd.DataFrame]
CW = parse_attack("cw(c=1)")
SHARED = WhiteBox(CW, "strict", shared_images=True)
PAPER = WhiteBox(CW, "paper")
MANIFEST_CONTENT = {"preset": "demo", "title": "", "commands": []}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "run")
    found.open("demo")
    return found


@pytest.fixture
def small(make_cell: MakeCell) -> MakeCell:
    """A cell in batches of ten images, 25 in all unless told."""
    return partial(make_cell, defense="baseline", **{"samples": 25, "batch_size": 10})


@pytest.fixture
def cell(small: MakeCell) -> Cell:
    return small(SHARED)


class _Attack:
    """Counts the batches it is asked for, and may be stopped in the middle."""

    def __init__(self, make_records: MakeRecords, stop_before: int | None = None) -> None:
        self.make_records = make_records
        self.asked: list[tuple[int, int]] = []
        self.stop_before = stop_before

    def __call__(self, cell: Cell, span: Span) -> pd.DataFrame:
        if span.first == self.stop_before:
            raise KeyboardInterrupt
        self.asked.append((span.first, span.end))
        return self.make_records(cell, {}).iloc[span.rows]


@pytest.fixture
def attack(make_records: MakeRecords) -> Callable[..., _Attack]:
    return partial(_Attack, make_records)


def _run(store: Store, cell: Cell, attack: _Attack) -> pd.DataFrame:
    """Put a cell together from the batches that an attack gives."""
    ledger = Ledger(store, RunDisplay())
    material = cast(Material, None)  # this attack needs neither an ensemble nor images
    for batch in ledger.batches([(material, [cell])]):
        ledger.take(Outcome(batch, attack(cell, batch.span)))
    return store.read(cell)


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- cells ---


def test_a_cell_comes_back_as_it_was_written(
    store: Store, cell: Cell, small: MakeCell, make_records: MakeRecords
) -> None:
    assert not store.has(cell)
    store.write(cell, make_records(cell, {}))
    assert store.has(cell)
    pd.testing.assert_frame_equal(store.read(cell), make_records(cell, {}))
    assert not store.has(small(SHARED, seed=1)) and not store.has(small(SHARED, samples=26))


def test_the_name_of_a_cells_file_says_what_is_in_it(store: Store, cell: Cell, make_cell: MakeCell) -> None:
    name = store.path(cell).name
    assert name.startswith("whitebox-baseline-cw-c=1-strict-n25-") and name.endswith(f"{cell.identity[:16]}.parquet")
    odd = make_cell(SHARED, "../a b/ensemble.safetensors")
    assert store.path(odd).parent == store.cells


def test_cells_say_which_state_of_the_code_finished_them(
    tmp_path: Path, small: MakeCell, make_records: MakeRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [small(SHARED, seed=seed) for seed in range(4)]
    for cell, commit in zip(cells, ("", "one", "two", "two"), strict=True):
        monkeypatch.setattr(hardware, "commit", lambda commit=commit: commit)
        store = Store(tmp_path / "run")  # a sitting
        store.open("demo")
        store.write(cell, make_records(cell, {}))
        store.write_manifest(cells, MANIFEST_CONTENT)
    assert store.commits() == {"": 1, "one": 1, "two": 2}


def test_a_cell_whose_writing_fails_is_not_there(
    store: Store, cell: Cell, make_records: MakeRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        written(path, data[:20])
        raise OSError(28, "No space left on device")

    written = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(RunFailed, match="No space left"):
        store.write(cell, make_records(cell, {}))
    assert not store.has(cell) and _files(store.folder) == {}


def test_a_damaged_cell_is_named_with_the_remedy(
    store: Store, cell: Cell, small: MakeCell, make_records: MakeRecords
) -> None:
    store.write(cell, make_records(cell, {}))
    path = store.path(cell)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(BadInput, match=r"cw-c=1.*damaged.*run the preset again"):
        store.read(cell)
    assert store.batches(small(SHARED, samples=50)) == {}


def test_a_failure_is_remembered_until_the_cell_is_done(store: Store, cell: Cell, make_records: MakeRecords) -> None:
    store.write_failure(cell, "ValueError: no")
    assert store.failure(cell) == "ValueError: no" and not store.has(cell)
    store.write(cell, make_records(cell, {}))
    assert store.failure(cell) is None


def test_the_cells_that_were_asked_for_come_back_in_their_order(store: Store, small: MakeCell) -> None:
    assert store.asked() == [] and store.commands() == [] and store.surrogates() == {}
    cells = [small(SHARED, seed=seed, published=float(seed)) for seed in (2, 0, 1)]
    store.write_manifest(cells, {**MANIFEST_CONTENT, "commands": ["adp-bench run demo"]})
    found = Store(store.folder)
    assert found.asked() == cells and [cell.published for cell in found.asked()] == [2.0, 0.0, 1.0]
    assert found.commands() == ["adp-bench run demo"]


# --- progress inside a cell ---


def test_a_stopped_cell_goes_on_after_its_last_batch(store: Store, cell: Cell, attack: Callable[..., _Attack]) -> None:
    with pytest.raises(KeyboardInterrupt):
        _run(store, cell, attack(stop_before=20))
    again = attack()
    records = _run(store, cell, again)
    assert again.asked == [(20, 25)]
    assert records["index"].tolist() == list(range(25))
    assert [path.suffix for path in _files(store.folder)] == [".parquet"], "progress is gone once the cell is there"


def test_more_samples_attack_only_the_new_images(store: Store, small: MakeCell, attack: Callable[..., _Attack]) -> None:
    few, many = small(SHARED, samples=20), small(SHARED, samples=40)
    _run(store, few, attack())
    before = store.path(few).read_bytes()
    again = attack()
    records = _run(store, many, again)
    assert again.asked == [(20, 30), (30, 40)] and records["index"].tolist() == list(range(40))
    assert store.path(few).read_bytes() == before


def test_fewer_samples_attack_nothing(store: Store, small: MakeCell, attack: Callable[..., _Attack]) -> None:
    many, few = small(SHARED, samples=40), small(SHARED, samples=20)
    _run(store, many, attack())
    again = attack()
    assert _run(store, few, again)["index"].tolist() == list(range(20))
    assert again.asked == []


def test_a_smaller_cell_leaves_the_progress_of_a_larger_one(
    store: Store, small: MakeCell, attack: Callable[..., _Attack]
) -> None:
    many, few = small(SHARED, samples=40), small(SHARED, samples=20)
    with pytest.raises(KeyboardInterrupt):
        _run(store, many, attack(stop_before=30))
    _run(store, few, attack(stop_before=0))
    again = attack()
    assert _run(store, many, again)["index"].tolist() == list(range(40))
    assert again.asked == [(30, 40)]


def test_tier_strict_takes_the_images_of_tier_paper_where_the_attack_is_the_same(
    store: Store, cell: Cell, small: MakeCell, make_records: MakeRecords, attack: Callable[..., _Attack]
) -> None:
    clean = [4, *[3] * 23, 4]  # the first and the last image are wrong already
    paper = make_records(small(PAPER), {"clean_prediction": clean})
    store.write(small(PAPER), paper)
    counting = attack()
    found = _run(store, cell, counting)
    assert counting.asked == []
    assert found["correct"].tolist() == found["attacked"].tolist() == [False, *[True] * 23, False]
    assert found["correct"].dtype == bool and found["seconds"].equals(paper["seconds"])
    pgd = parse_attack("pgd(eps=0.1)")  # sees other outputs in each tier
    store.write(small(WhiteBox(pgd, "paper")), paper)
    _run(store, small(WhiteBox(pgd, "strict")), counting)
    assert counting.asked == [(0, 10), (10, 20), (20, 25)]


def test_a_last_batch_that_was_short_is_not_taken_for_a_whole_one(
    store: Store, cell: Cell, small: MakeCell, attack: Callable[..., _Attack]
) -> None:
    _run(store, cell, attack())
    again = attack()
    _run(store, small(SHARED, samples=30), again)
    assert again.asked == [(20, 30)], "its result may depend on the batch"


@pytest.mark.parametrize("change", [{"seed": 1}, {"weights": "x"}, {"batch_size": 5}, {"task": PAPER}])
def test_batches_of_another_series_are_not_taken(
    store: Store, cell: Cell, small: MakeCell, attack: Callable[..., _Attack], change: dict[str, Any]
) -> None:
    _run(store, cell, attack())
    assert store.batches(small(**{"task": SHARED, **change})) == {}


def test_batches_that_come_back_in_any_order_make_the_same_cell(
    store: Store, cell: Cell, make_records: MakeRecords
) -> None:
    ledger = Ledger(store, RunDisplay())
    records = make_records(cell, {})
    for batch in reversed(list(ledger.batches([(cast(Material, None), [cell])]))):
        ledger.take(Outcome(batch, records.iloc[batch.span.rows]))
    pd.testing.assert_frame_equal(store.read(cell), records)


def test_what_comes_back_after_a_failure_is_kept_for_the_next_run(
    store: Store, cell: Cell, make_records: MakeRecords, attack: Callable[..., _Attack]
) -> None:
    ledger = Ledger(store, RunDisplay())
    first, second, third = ledger.batches([(cast(Material, None), [cell])])
    ledger.take(Outcome(second, Failure("ValueError", "no")))
    ledger.take(Outcome(third, Failure("ValueError", "no, again")))
    ledger.take(Outcome(first, make_records(cell, {}).iloc[first.span.rows]))
    assert store.failure(cell) == "ValueError: no" and not store.has(cell) and ledger.failed == {cell}
    again = attack()
    _run(store, cell, again)
    assert again.asked == [(10, 20), (20, 25)] and store.failure(cell) is None


def test_finished_cells_are_opened_once_however_many_cells_are_open(
    store: Store, small: MakeCell, make_records: MakeRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(60):
        store.write(small(SHARED, seed=seed), make_records(small(SHARED, seed=seed), {}))
    opened: Counter[str] = Counter()

    def counted(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(file: Any, *others: Any, **named: Any) -> Any:
            if hasattr(file, "name"):  # and is not a buffer in memory
                opened[file.name] += 1
            return read(file, *others, **named)

        return reading

    for name in ("read_schema", "read_table"):
        monkeypatch.setattr(f"benchmark.cells.record_files.pq.{name}", counted(getattr(pq, name)))
    store = Store(store.folder)
    for seed in range(60, 120):
        assert store.batches(small(SHARED, seed=seed)) == {}
    assert len(opened) == 60 and max(opened.values()) == 1
    store.write(small(SHARED, seed=60), make_records(small(SHARED, seed=60), {}))
    assert len(store.batches(small(SHARED, seed=60, samples=50))) == 3, "what is finished meanwhile is found as well"
    assert len(store.batches(small(SHARED, seed=0, samples=50))) == 3
    assert opened.total() == 60 + 2, "beside the two files whose records were needed, nothing was read again"


# --- pictures ---

SHAPE = (1, 2, 2)


def _pictures(count: int, fill: float) -> np.ndarray[Any, Any]:
    return np.linspace(0, fill, count * 4, dtype=np.float16).reshape(count, *SHAPE)


def _columns(images: np.ndarray[Any, Any], rows: int) -> list[bytes | None]:
    """The first images as bytes, one per row."""
    return [image.tobytes() for image in images] + [None] * (rows - len(images))


def _pictured(rows: int = 25) -> dict[str, Any]:
    """Columns of records whose first three images have pictures, with the predictions of two members."""
    rest = [None] * (rows - 3)
    return {
        "image_adversarial": _columns(_pictures(3, 0.5), rows),
        "shape": [list(SHAPE)] * 3 + rest,
        "members": [[3, 4], [5, 5], [0, 9], *rest],
    }


def test_pictures_are_kept_beside_the_records_and_not_inside(
    store: Store, cell: Cell, make_records: MakeRecords
) -> None:
    store.write(cell, make_records(cell, _pictured()))
    assert {path.suffix for path in _files(store.folder)} == {".parquet", ".pictures"}
    names = pq.read_schema(store.path(cell)).names
    assert not {"image_adversarial", "image_clean", "shape", "members"} & set(names)
    pd.testing.assert_frame_equal(store.read(cell), make_records(cell, {}))
    found = Store(store.folder).pictures(cell)
    assert found is not None and found.index.tolist() == [0, 1, 2] and found.clean is None
    np.testing.assert_array_equal(found.adversarial, _pictures(3, 0.5))
    assert found.members is not None and found.members.tolist() == [[3, 4], [5, 5], [0, 9]]


def test_pictures_of_a_batch_that_was_kept_are_those_of_the_cell(
    store: Store, cell: Cell, make_records: MakeRecords, attack: Callable[..., _Attack]
) -> None:
    store.write_batch(cell, 0, make_records(cell, _pictured()).iloc[:10])
    _run(store, cell, attack())
    found = store.pictures(cell)
    assert found is not None and found.index.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(found.adversarial, _pictures(3, 0.5))


def test_a_model_without_members_has_pictures_without_their_predictions(
    store: Store, cell: Cell, make_records: MakeRecords
) -> None:
    columns = {name: values for name, values in _pictured().items() if name != "members"}
    store.write(cell, make_records(cell, columns))
    found = store.pictures(cell)
    assert found is not None and found.members is None and len(found.adversarial) == 3


def test_a_cell_without_pictures_has_none(store: Store, cell: Cell, make_records: MakeRecords) -> None:
    store.write(cell, make_records(cell, {}))
    assert store.pictures(cell) is None
    nothing = dict.fromkeys(_pictured(), [None] * 25)
    store.write(cell, make_records(cell, nothing))
    assert store.pictures(cell) is None and [path.suffix for path in _files(store.folder)] == [".parquet"]


def test_damaged_pictures_are_named_with_the_remedy(store: Store, cell: Cell, make_records: MakeRecords) -> None:
    store.write(cell, make_records(cell, _pictured()))
    path = store.pictures_path(cell)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(BadInput, match=r"cw-c=1.*\.pictures cannot be read.*delete it and run again"):
        store.pictures(cell)


def test_clean_pictures_are_written_once(store: Store, cell: Cell) -> None:
    one, other = (replace(cell.images, checksum=letter * 64) for letter in "cd")
    first = np.linspace(0, 1, 8, dtype=np.float32).reshape(2, *SHAPE)
    assert store.clean_pictures(one) is None
    store.write_clean_pictures(one, first)
    before = {path: (path.stat().st_mtime_ns, content) for path, content in _files(store.folder).items()}
    Store(store.folder).write_clean_pictures(one, 1 - first)
    assert {path: (path.stat().st_mtime_ns, content) for path, content in _files(store.folder).items()} == before
    found = store.clean_pictures(one)
    assert found is not None and found.dtype == np.float16 and len(before) == 1
    np.testing.assert_array_equal(found, first.astype(np.float16))
    assert store.clean_pictures(other) is None
    store.write_clean_pictures(other, first)
    store.write_clean_pictures(replace(one, order="shuffled"), first)
    assert len(_files(store.folder)) == 3, "one file per dataset and order"


# --- files of the first version ---


def _first_version(path: Path, cell: Cell, records: pd.DataFrame) -> None:
    """A file as it was written then: without the newer keys, and with every column in it."""
    content = {key: value for key, value in to_json(cell).items() if key not in ("bound", "shared_images")}
    table = pa.Table.from_pandas(records, preserve_index=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata({"adp-benchmark": json.dumps(content)}), path)


def test_a_cell_of_the_first_version_has_its_pictures(
    store: Store, cell: Cell, small: MakeCell, make_records: MakeRecords
) -> None:
    older = [*JUDGED]  # columns that it did not have from the beginning
    columns = {**_pictured(), "image_clean": _columns(_pictures(3, 1.0), 25)}
    _first_version(store.path(cell), cell, make_records(cell, columns).drop(columns=older))
    found = store.pictures(cell)
    assert found is not None and found.index.tolist() == [0, 1, 2] and found.clean is not None
    np.testing.assert_array_equal(found.adversarial, _pictures(3, 0.5))
    np.testing.assert_array_equal(found.clean, _pictures(3, 1.0))
    assert found.members is not None and found.members.tolist() == [[3, 4], [5, 5], [0, 9]]
    pd.testing.assert_frame_equal(store.read(cell), make_records(cell, {}))
    assert len(store.batches(small(SHARED, samples=50))) == 3, "it is extended like any other"


WORST = WorstCase(
    Bound("linf", 0.1),
    "quick",
    tuple(map(read_stage, ("fgsm@torchattacks(eps=0.1) [3.5.1]", "pgd@native(eps=0.1) from net2 [1]"))),
)
FOOLED = {"attacked": [True, True, True, False], "correct": [False, False, True, False], "broken_at": [0, 1, -1, -1]}


def _wide(cell: Cell, make_records: MakeRecords) -> pd.DataFrame:
    """Four images, one for each fate, with a column per stage and number."""
    words = [WORST.stages[0].label, WORST.stages[1].label, "", ""]
    records = make_records(cell, {**FOOLED, "broken_by": words})
    for number, met in enumerate(([1.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0])):
        for place, name in enumerate(COSTS):
            records[f"stage{number:02d}_{name}"] = [(10 * number + place + 1) * share for share in met]
    return records.assign(stage01_source_fooled=[False, True, False, False])


def _long(second_fooled: bool | None) -> list[dict[str, Any]]:
    """The stages of an image; of one that fell to the first, there is no second."""
    first = {"stage": 0, "forwards": 1.0, "backwards": 2.0, "seconds": 3.0, "source_fooled": None}
    second = {"stage": 1, "forwards": 11.0, "backwards": 12.0, "seconds": 13.0, "source_fooled": second_fooled}
    return [first] if second_fooled is None else [first, second]


def test_columns_per_stage_of_the_first_version_are_read_as_a_list_per_image(
    store: Store, small: MakeCell, make_records: MakeRecords
) -> None:
    cell = small(WORST, samples=4, batch_size=2)
    _first_version(store.path(cell), cell, _wide(cell, make_records))
    records = store.read(cell)
    assert records["stages"].tolist() == [_long(None), _long(True), _long(False), []]
    assert not [name for name in records if str(name).startswith("stage0")]
    pd.testing.assert_frame_equal(records.drop(columns="stages"), _wide(cell, make_records).iloc[:, :-7])


def test_progress_of_the_first_version_goes_on_with_a_list_of_stages_per_image(
    store: Store, small: MakeCell, make_records: MakeRecords
) -> None:
    cell = small(WORST, samples=4, batch_size=2)
    done = _wide(cell, make_records).iloc[:2]
    _first_version(store.cells / "unfinished" / cell.series[:16] / "000000-000002.parquet", cell, done)
    (span,) = store.batches(cell)
    assert span == Span(0, 2) and store.batches(cell)[span]["stages"].tolist() == [_long(None), _long(True)]
    ledger = Ledger(store, RunDisplay())
    (batch,) = ledger.batches([(cast(Material, None), [cell])])
    rest = make_records(cell, {**FOOLED, "broken_by": "", "stages": [[], [], _long(False), []]})
    ledger.take(Outcome(batch, rest.iloc[batch.span.rows]))
    found = [[dict(part) for part in parts] for parts in store.read(cell)["stages"]]
    assert found == [_long(None), _long(True), _long(False), []]


# --- the folder ---


def test_a_new_and_an_empty_folder_are_taken(tmp_path: Path) -> None:
    Store(tmp_path / "new" / "deep").open("demo")
    (tmp_path / "empty").mkdir()
    Store(tmp_path / "empty").open("demo")


def test_a_folder_is_taken_again_when_a_run_was_killed_in_it_before_anything_was_planned(store: Store) -> None:
    (store.folder / ".manifest.json.1234.tmp").write_text("{")
    (store.cells / ".probe.1234").touch()
    Store(store.folder).open("errors")


def test_a_run_of_another_preset_is_refused_and_left_alone(store: Store, cell: Cell, make_records: MakeRecords) -> None:
    store.write_manifest([cell], MANIFEST_CONTENT)
    store.write(cell, make_records(cell, {}))
    before = _files(store.folder)
    with pytest.raises(BadInput, match="holds a run of preset 'demo', not 'errors'; choose another --out"):
        Store(store.folder).open("errors")
    assert _files(store.folder) == before


@pytest.mark.parametrize("name", ["notes.txt", "cells/other.bin"])
def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(BadInput, match="is not empty and holds no run"):
        Store(tmp_path).open("demo")
    assert list(_files(tmp_path)) == [path]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", json.dumps({"preset": "demo"}), '{"name": "a web app"}'])
def test_a_manifest_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(BadInput, match=MANIFEST):
        Store(tmp_path).open("demo")
    assert (tmp_path / MANIFEST).read_text() == content


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadInput, match="cannot write in"):
        Store(tmp_path / "file").open("demo")
    with pytest.raises(BadInput, match="holds no run"):
        Store(tmp_path / "file").manifest()


def test_a_larger_cell_keeps_the_pictures_of_the_smaller_one_that_it_extends(
    store: Store, small: MakeCell, make_records: MakeRecords, attack: Callable[..., _Attack]
) -> None:
    few, many = small(SHARED, samples=20), small(SHARED, samples=40)
    store.write(few, make_records(few, _pictured(20)))
    _run(store, many, attack())
    found = store.pictures(many)
    assert found is not None and found.index.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(found.adversarial, _pictures(3, 0.5))


def test_a_strict_cell_has_the_pictures_of_the_paper_cell_whose_images_it_takes(
    store: Store, cell: Cell, small: MakeCell, make_records: MakeRecords, attack: Callable[..., _Attack]
) -> None:
    clean = [3, 4, *[3] * 23]  # the second image is wrong already, and not attacked in tier strict
    store.write(small(PAPER), make_records(small(PAPER), {**_pictured(), "clean_prediction": clean}))
    _run(store, cell, attack())
    found = store.pictures(cell)
    assert found is not None and found.index.tolist() == [0, 2]
