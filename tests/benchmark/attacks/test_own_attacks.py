"""Attacks from a user's file: checked parameters, a digest that ignores comments, and a bound that is kept."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchmark import evaluate
from benchmark.attacks import ATTACKS, parse_attack
from benchmark.attacks.bounds import NORMS, Bound
from benchmark.cells.cell import Cell
from benchmark.cells.codec import from_json, to_json
from benchmark.evaluations.whitebox import WhiteBox
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble

SOURCE = '''
"""Attacks of a user."""
import torch

def attack(model, images, labels, strength: float = 1.0, sign: bool = True):
    """One step."""
    images = images.clone().requires_grad_()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    step = images.grad.sign() if sign else images.grad
    return (images + strength * step).detach().clamp(0, 1)

def bounded(model, images, labels, eps=0.1, norm="linf", targeted=False):
    return attack(model, images, labels, -eps if targeted else eps)

def noise(model, images, labels, bound="l2:0.5"):
    return (images + bound.radius).clamp(0, 1)

def anything(model, images, labels, **parameters):
    return images + parameters["shift"]

def needy(model, images, labels, how):
    return images

def sized(model, images, labels, sizes=(1, 2), bound="linf:0.1"):
    return images

class Leaving:
    def __init__(self):
        raise SystemExit(0)

class Stepper:
    def __init__(self, eps: float, steps: int = 3):
        if steps < 1:
            raise ValueError("no steps")
        self.eps, self.steps = eps, steps
        self.bound = f"linf:{eps}"

    def __call__(self, model, images, labels):
        clean = images
        for _ in range(self.steps):
            images = attack(model, images, labels, self.eps / self.steps)
        return images.clamp(clean - self.eps, clean + self.eps)
'''


@pytest.fixture(scope="module")
def mine_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mine") / "mine.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_function_and_a_class_run_with_their_parameters(
    mine: Path, ensemble: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = digits[0][:30], digits[1][:30]
    specs = [f"{mine}:attack(strength=0.1,bound=linf:0.1)", f"{mine}:Stepper(eps=0.1)", "fgsm(eps=0.1)"]
    records: dict[str, pd.DataFrame] = {}
    table = evaluate(ensemble, images, labels, specs, records=records)
    assert list(records)[:2] == ["mine.py:attack(strength=0.1,bound=linf:0.1)", "mine.py:Stepper(eps=0.1)"]
    one, several, fgsm = records.values()
    assert np.array_equal(one["adversarial_prediction"], fgsm["adversarial_prediction"]), "it is that attack"
    assert several["correct"].sum() <= one["correct"].sum() and not table["out_of_ball"].any()
    assert table["library"][0].startswith("mine.py ") and table["attack"].tolist()[:2] == ["attack", "Stepper"]


@pytest.mark.parametrize(
    ("spec", "bound"),
    [
        ("bounded(eps=0.2)", Bound("linf", 0.2)),
        ("bounded(eps=0.2,norm=l2)", Bound("l2", 0.2)),
        ("noise", Bound("l2", 0.5)),
        ("noise(bound=l1:3)", Bound("l1", 3)),
        ("Stepper(eps=8/255)", Bound("linf", 8 / 255)),
        ("attack(bound=l0:5)", Bound("l0", 5)),
        ("attack(bound=none)", None),
        ("anything(shift=0.1,bound=none)", None),
    ],
)
def test_the_bound_is_that_of_eps_and_norm_of_an_attribute_or_asked_for(
    spec: str, bound: Bound | None, mine: Path, make_cell: Callable[..., Cell]
) -> None:
    named = parse_attack(f"{mine}:{spec}")
    assert named.bound == bound
    cell = make_cell(WhiteBox(named, "strict"))
    read = from_json(to_json(cell))
    assert read == cell and read.identity == cell.identity and read.task.bound == bound


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("attack", "bound="),
        ("attack(strenght=2,bound=none)", "strength"),
        ("attack(strength=much,bound=none)", "strength"),
        ("atack(bound=none)", "attack"),
        ("torch(bound=none)", "torch"),
        ("needy(bound=none)", "how"),
        ("Stepper", "eps"),
        ("Stepper(eps=0.1,steps=0)", "no steps"),
        ("bounded(eps=0.2,bound=none)", "linf:0.2"),
    ],
)
def test_what_cannot_be_is_refused_by_name(spec: str, word: str, mine: Path) -> None:
    with pytest.raises(BadInput) as refusal:
        parse_attack(f"{mine}:{spec}")
    assert word in str(refusal.value)


NUMBERS = st.one_of(
    st.floats().map(str),
    st.integers().map(str),
    st.integers(1, 6000).map(lambda count: "9" * count),
    st.text("0123456789+-.eE/xinfaINF½²٣", min_size=1, max_size=12),
)


@given(st.lists(NUMBERS, min_size=1, max_size=3), st.sampled_from(["anything(bound=none,x={})", "sized(sizes={})"]))
def test_any_text_for_a_number_is_read_or_refused(mine_once: Path, numbers: list[str], form: str) -> None:
    with contextlib.suppress(BadInput):
        parse_attack(f"{mine_once}:{form.format('x'.join(numbers))}")


def test_a_class_that_ends_the_program_is_refused(mine: Path) -> None:
    with pytest.raises(BadInput):
        parse_attack(f"{mine}:Leaving(bound=none)")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere"):
        parse_attack(f"{tmp_path}/nowhere.py:attack(bound=none)")


def test_the_identity_has_the_digest_of_the_source_without_comments(
    mine: Path, tmp_path: Path, make_cell: Callable[..., Cell]
) -> None:
    def identity(folder: str, source: str) -> str:
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "mine.py"
        path.write_text(source)
        return make_cell(WhiteBox(parse_attack(f"{path}:attack(bound=l2:1)"), "strict")).identity

    first = identity("as-it-is", SOURCE)
    assert identity("comment", SOURCE.replace("One step", "A step") + "\n# done\n") == first
    assert identity("changed", SOURCE.replace("strength * step", "2 * strength * step")) != first


def test_a_targeted_attack_gets_targets(mine: Path, ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    records: dict[str, pd.DataFrame] = {}
    spec = f"{mine}:bounded(eps=0.3,targeted=true)"
    evaluate(ensemble, digits[0][:30], digits[1][:30], [spec], records=records)
    (found,) = records.values()
    assert (found["target"] != found["label"]).all() and (found["target"] >= 0).all()
    assert not found["wrong_way"][found["attacked"]].astype(bool).all()


RADII = {"linf": 0.05, "l2": 0.5, "l1": 2.0, "l0": 4.0}
LEAVES = """
import torch

def attack(model, images, labels, eps: float, norm: str):
    perturbation = torch.full_like(images, 0.4)
    return torch.where(images < 0.5, images + perturbation, images - perturbation)
"""


@pytest.mark.parametrize("norm", NORMS)
def test_an_attack_that_leaves_its_bound_is_counted_projected_judged_again_and_flagged(
    norm: str, tmp_path: Path, ensemble: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    path = tmp_path / "leaves.py"
    path.write_text(LEAVES)
    images, labels = digits[0][:30], digits[1][:30]
    radius = RADII[norm]
    records: dict[str, pd.DataFrame] = {}
    table = evaluate(ensemble, images, labels, [f"{path}:attack(eps={radius},norm={norm})"], records=records)
    (found,) = records.values()
    attacked = found["attacked"].to_numpy()
    assert found["out_of_ball"][attacked].all() and table["out_of_ball"][0] == attacked.sum()
    assert "out-of-ball" in table["flags"][0]
    assert (found[norm] <= radius + 1e-4).all(), "they were projected"
    shift = torch.where(images < 0.5, 0.4, -0.4)
    inside = (
        images
        + {
            "linf": lambda: shift.sign() * radius,
            "l2": lambda: shift * (radius / (0.4 * 8)),
            "l1": lambda: shift.sign() * radius / 64,
        }.get(norm, lambda: torch.zeros_like(shift))()
    )
    if norm != "l0":  # of 64 equal entries, which four are kept is not said
        with torch.no_grad():
            expected = ensemble.eval()(inside).argmax(1).numpy()
        again = found["adversarial_prediction"].to_numpy()
        assert np.array_equal(again[attacked], expected[attacked]), "they were judged again, where they are now"


PLUGGED = """
from dataclasses import dataclass
from typing import ClassVar

import torch

from benchmark.attacks.definitions import Attack


@dataclass(frozen=True)
class Far(Attack):
    backends: ClassVar[dict[str, str]] = {"native": "plugged:far"}
    eps: float
    norm: str = "l2"


@dataclass(frozen=True)
class Unsaid(Attack):
    backends: ClassVar[dict[str, str]] = {"native": "plugged:far"}
    eps: float


def far(model, images, labels, attack):
    return torch.where(images < 0.5, images + 0.4, images - 0.4)
"""


@pytest.mark.parametrize("norm", NORMS)
def test_an_attack_of_a_package_that_leaves_its_bound_is_projected_and_flagged(
    norm: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ensemble: Ensemble,
    digits: tuple[Tensor, Tensor],
) -> None:
    (tmp_path / "plugged.py").write_text(PLUGGED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plugged", raising=False)
    monkeypatch.setattr(ATTACKS, "_targets", {**ATTACKS._targets, "far": "plugged:Far", "unsaid": "plugged:Unsaid"})
    monkeypatch.setattr(ATTACKS, "_imported", {})
    spec = f"far(eps={RADII[norm]},norm={norm})"
    assert parse_attack(spec).bound == Bound(norm, RADII[norm])  # type: ignore[arg-type]
    table = evaluate(ensemble, digits[0][:20], digits[1][:20], [spec])
    assert table["out_of_ball"][0] > 0 and "out-of-ball" in table["flags"][0]
    with pytest.raises(BadInput, match="bound="):
        parse_attack("unsaid(eps=0.5)")
