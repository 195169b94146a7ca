"""The store keeps what is finished, whole or not at all, and never touches what is not its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import pandas as pd
import pytest
from benchmark.display import RunDisplay
from benchmark.executors import Failure, Material, Outcome
from benchmark.ledger import Ledger
from benchmark.store import MANIFEST, Store

from benchmark import hardware
from benchmark.cells import Cell
from defenses.errors import BadInput, RunFailed

CELL = Cell(
    dataset="digits", data_checksum="d", defense="baseline", spec="baseline", members=3, network="mini-resnet",
    training="", weights="w", attack="cw", parameters="c=1", library="foolbox", library_version="3",
    settings={"c": 1.0}, tier="strict", samples=25, seed=0, batch_size=10, device="cpu",
)  # fmt: skip
FOREIGN = {"preset": "demo", "title": "", "commands": [], "cells": []}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "run")
    found.open("demo")
    return found


def _records(first: int, end: int) -> pd.DataFrame:
    usual = {"label": 3, "clean_prediction": 3, "attacked": True, "correct": True, "batch_size": 10}
    usual |= dict.fromkeys(("forwards", "backwards", "seconds"), 1.0)
    usual |= dict.fromkeys(("unmoved", "not_finite", "out_of_box", "out_of_ball", "zero_gradient"), False)
    return pd.DataFrame({"index": range(first, end), **usual})


class _Attack:
    """Counts the batches it is asked for, and may be stopped in the middle."""

    def __init__(self, stop_before: int | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self.stop_before = stop_before

    def __call__(self, first: int, end: int) -> pd.DataFrame:
        if first == self.stop_before:
            raise KeyboardInterrupt
        self.asked.append((first, end))
        return _records(first, end)


def _run(store: Store, cell: Cell, attack: _Attack) -> pd.DataFrame:
    """Put a cell together from the batches that an attack gives."""
    ledger = Ledger(store, RunDisplay())
    material = cast(Material, None)  # this attack needs neither an ensemble nor images
    for batch in ledger.batches([(material, [cell])]):
        ledger.take(Outcome(batch, attack(batch.first, batch.end)))
    return store.read(cell)


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- cells ---


def test_a_cell_comes_back_as_it_was_written(store: Store) -> None:
    assert not store.has(CELL)
    store.write(CELL, _records(0, 25))
    assert store.has(CELL)
    pd.testing.assert_frame_equal(store.read(CELL), _records(0, 25))
    assert not store.has(replace(CELL, seed=1)) and not store.has(replace(CELL, samples=26))


def test_the_name_of_a_cells_file_says_what_is_in_it(store: Store) -> None:
    name = store.path(CELL).name
    assert name.startswith("whitebox-baseline-cw-c=1-strict-n25-") and name.endswith(f"{CELL.identity[:16]}.parquet")
    odd = replace(CELL, defense="../a b/ensemble.safetensors")
    assert store.path(odd).parent == store.cells


def test_cells_say_which_state_of_the_code_finished_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [replace(CELL, seed=seed) for seed in range(4)]
    for cell, commit in zip(cells, ("", "one", "two", "two"), strict=True):
        monkeypatch.setattr(hardware, "commit", lambda commit=commit: commit)
        store = Store(tmp_path / "run")  # a sitting
        store.open("demo")
        store.write(cell, _records(0, 25))
        store.write_manifest({**FOREIGN, "cells": [cell.asked() for cell in cells]})
    assert store.commits() == {"": 1, "one": 1, "two": 2}


def test_a_cell_whose_writing_fails_is_not_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(table: object, file: Path) -> None:
        file.write_bytes(b"PAR1 half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("benchmark.store.pq.write_table", full)
    with pytest.raises(RunFailed, match="No space left"):
        store.write(CELL, _records(0, 25))
    assert not store.has(CELL) and _files(store.folder) == {}


def test_a_damaged_cell_is_named_with_the_remedy(store: Store) -> None:
    store.write(CELL, _records(0, 25))
    path = store.path(CELL)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(BadInput, match=r"cw-c=1.*cannot be read.*delete it and run again"):
        store.read(CELL)
    with pytest.raises(BadInput, match="delete it and run again"):
        store.batches(replace(CELL, samples=50))


def test_a_failure_is_remembered_until_the_cell_is_done(store: Store) -> None:
    store.write_failure(CELL, "ValueError: no")
    assert store.failure(CELL) == "ValueError: no" and not store.has(CELL)
    store.write(CELL, _records(0, 25))
    assert store.failure(CELL) is None


# --- progress inside a cell ---


def test_a_stopped_cell_goes_on_after_its_last_batch(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt):
        _run(store, CELL, _Attack(stop_before=20))
    again = _Attack()
    records = _run(store, CELL, again)
    assert again.asked == [(20, 25)]
    assert records["index"].tolist() == list(range(25))
    assert [path.suffix for path in _files(store.folder)] == [".parquet"], "progress is gone once the cell is there"


def test_more_samples_attack_only_the_new_images(store: Store) -> None:
    small, large = replace(CELL, samples=20), replace(CELL, samples=40)
    _run(store, small, _Attack())
    before = store.path(small).read_bytes()
    again = _Attack()
    records = _run(store, large, again)
    assert again.asked == [(20, 30), (30, 40)] and records["index"].tolist() == list(range(40))
    assert store.path(small).read_bytes() == before


def test_fewer_samples_attack_nothing(store: Store) -> None:
    large, small = replace(CELL, samples=40), replace(CELL, samples=20)
    _run(store, large, _Attack())
    again = _Attack()
    assert _run(store, small, again)["index"].tolist() == list(range(20))
    assert again.asked == []


def test_a_smaller_cell_leaves_the_progress_of_a_larger_one(store: Store) -> None:
    large, small = replace(CELL, samples=40), replace(CELL, samples=20)
    with pytest.raises(KeyboardInterrupt):
        _run(store, large, _Attack(stop_before=30))
    _run(store, small, _Attack(stop_before=0))
    again = _Attack()
    assert _run(store, large, again)["index"].tolist() == list(range(40))
    assert again.asked == [(30, 40)]


def test_tier_strict_takes_the_images_of_tier_paper_where_the_attack_is_the_same(store: Store) -> None:
    wrong = {0: False, 24: False}
    paper = _records(0, 25).assign(clean_prediction=[3 if wrong.get(row, True) else 4 for row in range(25)])
    store.write(replace(CELL, tier="paper"), paper)
    attack = _Attack()
    found = _run(store, CELL, attack)
    assert attack.asked == []
    assert found["correct"].tolist() == found["attacked"].tolist() == [False, *[True] * 23, False]
    assert found["correct"].dtype == bool and found["seconds"].equals(paper["seconds"])
    pgd = replace(CELL, attack="pgd", parameters="eps=0.1", settings={"eps": 0.1})  # sees other outputs in each tier
    store.write(replace(pgd, tier="paper"), paper)
    _run(store, pgd, attack)
    assert attack.asked == [(0, 10), (10, 20), (20, 25)]


def test_a_last_batch_that_was_short_is_not_taken_for_a_whole_one(store: Store) -> None:
    _run(store, CELL, _Attack())
    again = _Attack()
    _run(store, replace(CELL, samples=30), again)
    assert again.asked == [(20, 30)], "its result may depend on the batch"


@pytest.mark.parametrize("change", [{"seed": 1}, {"weights": "x"}, {"batch_size": 5}, {"tier": "paper"}])
def test_batches_of_another_series_are_not_taken(store: Store, change: dict[str, object]) -> None:
    _run(store, CELL, _Attack())
    assert store.batches(replace(CELL, **change)) == {}


def test_batches_that_come_back_in_any_order_make_the_same_cell(store: Store) -> None:
    ledger = Ledger(store, RunDisplay())
    for batch in reversed(list(ledger.batches([(cast(Material, None), [CELL])]))):
        ledger.take(Outcome(batch, _records(batch.first, batch.end)))
    pd.testing.assert_frame_equal(store.read(CELL), _records(0, 25))


def test_what_comes_back_after_a_failure_is_kept_for_the_next_run(store: Store) -> None:
    ledger = Ledger(store, RunDisplay())
    first, second, third = ledger.batches([(cast(Material, None), [CELL])])
    ledger.take(Outcome(second, Failure("ValueError", "no")))
    ledger.take(Outcome(third, Failure("ValueError", "no, again")))
    ledger.take(Outcome(first, _records(first.first, first.end)))
    assert store.failure(CELL) == "ValueError: no" and not store.has(CELL) and ledger.failed == {CELL.key}
    again = _Attack()
    _run(store, CELL, again)
    assert again.asked == [(10, 20), (20, 25)] and store.failure(CELL) is None


# --- the folder ---


def test_a_new_and_an_empty_folder_are_taken(tmp_path: Path) -> None:
    Store(tmp_path / "new" / "deep").open("demo")
    (tmp_path / "empty").mkdir()
    Store(tmp_path / "empty").open("demo")


def test_a_folder_is_taken_again_when_a_run_was_killed_in_it_before_anything_was_planned(store: Store) -> None:
    (store.folder / ".manifest.json.1234.tmp").write_text("{")
    (store.cells / ".probe.1234").touch()
    Store(store.folder).open("errors")


def test_a_run_of_another_preset_is_refused_and_left_alone(store: Store) -> None:
    store.write_manifest(FOREIGN)
    store.write(CELL, _records(0, 25))
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
