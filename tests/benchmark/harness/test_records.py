"""Records have every column of their schema, each of its type; where nobody looked, nothing is claimed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from benchmark.attacks import bounds, parse_attack
from benchmark.cells.cell import Cell
from benchmark.evaluations import TASKS
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.task import Task
from benchmark.evaluations.transfer import Transfer
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.harness.crafting import Crafted
from benchmark.harness.records import (
    COSTS,
    FLAGS,
    JUDGED,
    NORMS,
    RECORDS,
    Column,
    Schema,
    Span,
    judged,
    was_right,
)

MakeCell = Callable[..., Cell]
MakeRecords = Callable[[Cell, dict[str, Any]], pd.DataFrame]
SCHEMAS = {name: task.records for name, task in TASKS.items()}
FEW = {"label": [1, 2, 3], "clean_prediction": [1, 2, 0], "correct": [True, False, False]}
STRICT = WhiteBox(parse_attack("pgd(eps=0.1)"), "strict")


def _kinds(schema: Schema) -> dict[str, str]:
    """Types of the columns that all records of a schema have."""
    fixed = [column for column in schema.columns if "{member}" not in column.name]
    return {column.name: column.kind for column in fixed if column.kind != "object"}


@pytest.mark.parametrize("evaluation", SCHEMAS)
def test_a_frame_has_every_fixed_column_of_its_type_in_the_order_of_the_schema(evaluation: str) -> None:
    schema = SCHEMAS[evaluation]
    frame = schema.frame(Span(4, 7), FEW)
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == _kinds(schema)
    assert list(frame) == list(_kinds(schema))
    assert frame["index"].tolist() == [4, 5, 6] and frame.index.tolist() == [0, 1, 2]


@pytest.mark.parametrize("evaluation", SCHEMAS)
def test_every_column_is_described_and_stands_once(evaluation: str) -> None:
    columns = SCHEMAS[evaluation].columns
    assert len({column.name for column in columns}) == len(columns)
    assert all(column.meaning for column in columns)
    assert columns[: len(RECORDS.columns)] == RECORDS.columns, "an evaluation adds to what all have"


def test_values_that_are_given_become_columns_of_the_schemas_types() -> None:
    given = {**FEW, "attacked": [1, 0, 1], "l0": [3, 4, 5], "unstable": np.array([True, False, True]), "batch_size": 3}
    frame = RECORDS.frame(Span(0, 3), given)
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == _kinds(RECORDS)
    assert frame["attacked"].tolist() == [True, False, True] and frame["l0"].tolist() == [3.0, 4.0, 5.0]
    assert frame["unstable"].tolist() == [True, False, True] and frame["batch_size"].tolist() == [3, 3, 3]


def test_what_is_not_given_has_its_default() -> None:
    frame = RECORDS.frame(Span(0, 3), FEW)
    assert (frame["target"] == -1).all() and not frame["attacked"].any()
    assert not frame[list(FLAGS)].to_numpy().any()
    assert not frame[[*NORMS, "forwards", "backwards", "seconds", "batch_size"]].to_numpy().any()
    assert frame["adversarial_prediction"].tolist() == FEW["clean_prediction"], "without an attack, as before"


@pytest.mark.parametrize("name", JUDGED)
def test_what_nobody_judged_stays_null(name: str, make_cell: MakeCell, make_records: MakeRecords) -> None:
    cell = make_cell(STRICT, samples=3)
    records = make_records(cell, {})
    assert records[name].isna().all() and judged(records, name) is None
    again = cell.task.records.complete(records.drop(columns=name))
    assert again[name].isna().all() and str(again[name].dtype) == "boolean"
    part = judged(make_records(cell, {name: pd.array([True, None, False], dtype="boolean")}), name)
    assert part is not None and part.tolist() == [True, False, False] and part.dtype == bool


def test_records_of_an_older_version_are_completed_and_what_they_have_is_kept(
    make_cell: MakeCell, make_records: MakeRecords
) -> None:
    cell = make_cell(STRICT, samples=4)
    values = {"l2": [0.1, 0.2, 0.3, 0.4], "correct": [True, False, True, False], "adversarial_prediction": [3, 1, 3, 5]}
    whole = make_records(cell, values)
    old = whole.drop(columns=[*JUDGED, "zero_gradient", "l1", "seconds"]).astype({"l0": "int64", "target": "int32"})
    old = old[list(reversed(old.columns))]
    pd.testing.assert_frame_equal(cell.task.records.complete(old), whole.assign(seconds=0.0))


@pytest.mark.parametrize("evaluation", SCHEMAS)
def test_what_is_complete_is_left_as_it_is(evaluation: str) -> None:
    schema = SCHEMAS[evaluation]
    frame = schema.frame(Span(0, 3), FEW).set_axis([7, 8, 9])
    before = frame.copy()
    pd.testing.assert_frame_equal(schema.complete(frame), before)
    pd.testing.assert_frame_equal(frame, before)


def test_columns_of_members_and_pictures_follow_as_they_are() -> None:
    members = {"prediction_net1": [1, 2, 3], "clean_ensemble": [1, 2, 0], "shape": [[1, 8, 8], None, None]}
    frame = Transfer.records.frame(Span(0, 3), {**members, **FEW})
    assert list(frame)[-3:] == list(members)
    assert {name: frame[name].tolist() for name in members} == members
    assert "prediction_net2" not in frame and "prediction_{member}" not in frame


def test_a_schema_with_more_columns_leaves_the_other_as_it_was() -> None:
    schema = Schema((Column("index", "int64", "row"),))
    more = schema.plus(Column("led", "float64", "diversity", float("nan")), Column("rank", "int64", "place", -1))
    assert [column.name for column in more.columns] == ["index", "led", "rank"] and len(schema.columns) == 1
    frame = more.frame(Span(0, 2), {})
    assert frame["led"].isna().all() and frame["rank"].tolist() == [-1, -1]


def test_batches_of_one_cell_have_the_same_columns_whatever_was_found_in_them(
    make_cell: MakeCell, make_records: MakeRecords
) -> None:
    """So that they can stand under each other; a null column among them stays what it is."""
    cell = make_cell(STRICT, samples=2)
    looked, unseen = make_records(cell, {"unstable": [True, False]}), make_records(cell, {})
    both = pd.concat([looked, unseen], ignore_index=True)
    assert {name: str(kind) for name, kind in both.dtypes.items()} == _kinds(RECORDS)
    assert both["unstable"].isna().tolist() == [False, False, True, True]


def test_a_span_is_rows_of_the_test_set() -> None:
    span = Span(10, 25)
    assert span.size == 15 and list(range(100))[span.rows] == list(range(10, 25))
    assert span == (10, 25) and len({span, Span(10, 25), Span(0, 25)}) == 2


@pytest.mark.parametrize("task", [Clean(), STRICT])
def test_an_image_was_right_when_its_clean_prediction_was(
    task: Task, make_cell: MakeCell, make_records: MakeRecords
) -> None:
    records = make_records(make_cell(task, samples=3), FEW)
    assert was_right(records).tolist() == [True, True, False]


# --- groups of columns, and what is missing ---


def test_every_column_of_a_kind_belongs_to_its_group() -> None:
    flags = {column.name for column in RECORDS.columns if column.kind == "bool" and column.default is False}
    assert {*FLAGS, "attacked"} == flags and len(FLAGS) == len(set(FLAGS))
    assert set(JUDGED) == {column.name for column in RECORDS.columns if column.kind == "boolean"}
    assert set(NORMS) == set(bounds.NORMS)
    costs = Crafted(torch.zeros(2, 1, 1, 1), {}, forwards=6, backwards=4, seconds=1.0).costs(2)
    assert costs == {"forwards": 3, "backwards": 2, "seconds": 0.5, "batch_size": 2}
    assert {*COSTS, "batch_size"} == set(costs)


@pytest.mark.parametrize("name", ["label", "clean_prediction", "correct"])
def test_a_record_without_what_every_record_needs_is_refused_by_name(name: str) -> None:
    rest = {other: values for other, values in FEW.items() if other != name}
    if name == "clean_prediction":
        rest["adversarial_prediction"] = [1, 2, 0]
    with pytest.raises(ValueError, match=f"the records have no column '{name}', which every record needs"):
        RECORDS.frame(Span(0, 3), rest)


def test_a_prediction_that_stands_for_another_takes_the_type_of_its_column() -> None:
    small = {**FEW, "clean_prediction": np.array([1, 2, 0], dtype=np.int8)}
    frame = RECORDS.frame(Span(0, 3), small)
    assert frame["clean_prediction"].dtype == frame["adversarial_prediction"].dtype == np.int64


def test_a_schema_that_many_share_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        RECORDS.columns = ()  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        RECORDS.columns[0].kind = "object"  # type: ignore[misc]


def test_records_that_lack_nothing_but_types_get_them() -> None:
    whole = RECORDS.frame(Span(0, 3), {**FEW, "l2": [0.1, 0.2, 0.3], "unstable": [True, False, True]})
    pd.testing.assert_frame_equal(RECORDS.complete(whole.astype(object)), whole)
    pd.testing.assert_frame_equal(RECORDS.complete(whole.astype({"l0": "int64", "target": "int32"})), whole)
