"""``bound=`` in a spec says which bound the images of any attack are checked against."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import Tensor

from benchmark import evaluate
from benchmark.attacks import parse_attack
from benchmark.attacks.bounds import NORMS, Bound
from benchmark.cells.codec import from_json, to_json
from benchmark.evaluations.transfer import Transfer
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import Stage, read_stage
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble


def test_a_bound_that_was_asked_for_is_the_attacks_bound_and_part_of_its_spec() -> None:
    named = parse_attack("cw(bound=l2:0.5,c=1)")
    assert named.bound == Bound("l2", 0.5)
    assert named.text == "cw@foolbox(c=1,bound=l2:0.5)"
    assert parse_attack(named.text) == named


def test_the_attacks_own_bound_need_not_be_said() -> None:
    assert parse_attack("pgd(eps=8/255,bound=linf:8/255)") == parse_attack("pgd(eps=8/255)")
    assert parse_attack("cw(c=1,bound=none)") == parse_attack("cw(c=1)")


def test_an_attack_with_a_bound_cannot_be_freed_of_it() -> None:
    with pytest.raises(BadInput, match="pgd"):
        parse_attack("pgd(eps=0.1,bound=none)")


@pytest.mark.parametrize("text", ["0.5", "l3:0.5", "l2", "l2:-1", "l2:x"])
def test_a_bound_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_attack(f"cw(c=1,bound={text})")


def test_cells_with_a_bound_that_was_asked_for_are_read_back_and_differ_from_those_without(make_cell) -> None:  # type: ignore[no-untyped-def]
    for text in ("cw(c=1,bound=l2:0.5)", "pgd(eps=0.1,bound=l2:0.5)", "pgd@art(eps=0.1,steps=3,bound=l1:2)"):
        named = parse_attack(text)
        for task in (WhiteBox(named, "strict"), Transfer(named, 1)):
            cell = make_cell(task)
            read = from_json(to_json(cell))
            assert read == cell and read.identity == cell.identity
        plain = make_cell(WhiteBox(parse_attack(text.replace(text[text.index(",bound=") : -1], "")), "strict"))
        assert plain.identity != make_cell(WhiteBox(named, "strict")).identity
        assert read_stage(Stage(named).written()) == Stage(named)


@pytest.mark.parametrize("norm", NORMS)
def test_images_beyond_the_bound_are_counted_projected_and_judged_again(
    norm: str, ensemble: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    """PGD with eps 0.3 leaves every one of these balls; what counts is what the model says of the projected images."""
    images, labels = digits[0][:30], digits[1][:30]
    radius = {"linf": 0.02, "l2": 0.2, "l1": 0.5, "l0": 1}[norm]
    records: dict[str, pd.DataFrame] = {}
    table = evaluate(ensemble, images, labels, ["pgd(eps=0.3)", f"pgd(eps=0.3,bound={norm}:{radius})"], records=records)
    free, held = (records[key] for key in records)
    attacked = held["attacked"]
    assert held["out_of_ball"][attacked].all() and not free["out_of_ball"].any()
    assert table["out_of_ball"].tolist() == [0, int(attacked.sum())]
    assert "out-of-ball" in table["flags"][1]
    assert (held[norm] <= radius * (1 + 1e-5) + 1e-6).all() and (free[norm][attacked] > radius).all()
    assert held["correct"].sum() > free["correct"].sum()


def test_a_smallest_perturbation_beyond_the_radius_is_no_flag(
    ensemble: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    table = evaluate(ensemble, digits[0][:20], digits[1][:20], ["cw(c=1,steps=20,lr=0.05,bound=l2:0.01)"])
    assert table["out_of_ball"][0] > 0
    assert "out-of-ball" not in table["flags"][0]
    assert torch.tensor(table["accuracy"][0]) > 50
