"""A cell's identity changes with everything that changes its result, and with nothing else."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from benchmark.cells import Cell, cell_from

CELL = Cell(
    dataset="digits",
    data_checksum="d0",
    defense="baseline",
    spec="baseline",
    members=3,
    network="mini-resnet",
    training="fast recipe",
    weights="w0",
    attack="pgd",
    parameters="eps=0.1",
    library="torchattacks",
    library_version="3.5.1",
    settings={"eps": 0.1, "steps": 10},
    tier="strict",
    samples=100,
    seed=0,
    batch_size=50,
    device="cpu",
)

CHANGES: dict[str, Any] = {
    "dataset": "mnist",
    "data_checksum": "d1",
    "weights": "w1",
    "attack": "bim",
    "library": "art",
    "library_version": "4",
    "settings": {"eps": 0.1, "steps": 11},
    "tier": "paper",
    "seed": 1,
    "batch_size": 100,
    "device": "cuda",
    "evaluation": "blackbox",
    "acceleration": "none",
}
NAMES: dict[str, Any] = {
    "defense": "mine",
    "spec": "adp(alpha=0,beta=0)",
    "members": 4,
    "network": "other",
    "training": "in other words",
    "parameters": "steps=10,eps=0.1",
    "published": 12.5,
}


def test_every_field_is_either_part_of_the_result_or_a_name() -> None:
    assert {field.name for field in fields(Cell)} == {*CHANGES, *NAMES, "samples"}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_the_result_changes_identity_and_series(name: str) -> None:
    other = replace(CELL, **{name: CHANGES[name]})
    assert other.identity != CELL.identity and other.series != CELL.series


@pytest.mark.parametrize("name", NAMES)
def test_names_and_references_do_not(name: str) -> None:
    other = replace(CELL, **{name: NAMES[name]})
    assert other.identity == CELL.identity and other.series == CELL.series


def test_a_column_has_one_ensemble_whatever_its_size() -> None:
    assert replace(CELL, members=5, weights="other").place == CELL.place != replace(CELL, defense="other").place


def test_more_samples_are_another_cell_of_the_same_series() -> None:
    other = replace(CELL, samples=200)
    assert other.identity != CELL.identity and other.series == CELL.series


def test_a_protocol_change_makes_every_cell_new(monkeypatch: pytest.MonkeyPatch) -> None:
    before = CELL.identity
    monkeypatch.setattr("benchmark.cells.PROTOCOL", 999)
    assert CELL.identity != before


def test_a_cell_survives_a_file() -> None:
    again = cell_from(json.loads(json.dumps(CELL.asked())))
    assert again == CELL and again.identity == CELL.identity


def test_the_order_of_settings_does_not_matter() -> None:
    assert replace(CELL, settings={"steps": 10, "eps": 0.1}).identity == CELL.identity
