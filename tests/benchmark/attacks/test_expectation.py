"""Expectation over randomness: attacks average draws, random models are judged by draws, and a flag asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmark import datasets
from benchmark.api import evaluate
from benchmark.attacks import parse_attack
from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.definitions import AutoAttack
from benchmark.cells.cell import Cell
from benchmark.cells.codec import from_json, to_json
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.harness.crafting import craft
from benchmark.harness.prepared import prepared
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble

EPS = 0.2
COUNT = 60
MEMBERS = 4


class Noisy(nn.Module):
    """A linear model of pixels with noise, in double precision if asked."""

    def __init__(self, size: float = 0.3) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(64, 10)
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        seen = images + self.size * torch.randn_like(images)
        return self.layer(seen.flatten(1))


class Part(nn.Module):
    """A linear model of every fourth pixel."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset
        self.layer = nn.Linear(64 // MEMBERS, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1)[:, self.offset :: MEMBERS])


class Drawing(Ensemble):
    """The planted defense: it answers with a member that it draws for every image, each of which sees other pixels.

    One gradient moves a quarter of the pixels, so an attack that takes one draw a step goes a quarter of the way.
    """

    def forward(self, images: Tensor) -> Tensor:
        logits = self.member_logits(images)
        drawn = torch.randint(len(self), (len(images),))
        return torch.log_softmax(logits[drawn, torch.arange(len(images))], dim=-1)


@pytest.fixture(scope="module")
def parts() -> list[nn.Module]:
    train = datasets.load("digits").train
    images, labels = train.images(), train.labels
    found: list[nn.Module] = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for offset in range(MEMBERS):
            part = Part(offset)
            optimiser = torch.optim.Adam(part.parameters(), lr=0.05)
            for _ in range(150):
                optimiser.zero_grad()
                functional.cross_entropy(part(images), labels).backward()
                optimiser.step()
            found.append(part)
    return found


# --- the average ---


def test_the_gradient_is_the_mean_of_the_gradients_of_the_draws() -> None:
    model = Noisy().double()
    images, labels = torch.rand(5, 1, 8, 8, dtype=torch.float64), torch.arange(5)
    attacked = AttackedModel(model, eot=7)

    def probability(output: Tensor) -> Tensor:
        return torch.softmax(output, -1)[torch.arange(5), labels].sum()

    torch.manual_seed(3)
    point = images.clone().requires_grad_()
    (found,) = torch.autograd.grad(probability(attacked(point)), point)
    torch.manual_seed(3)
    gradients, probabilities = [], []
    for _ in range(7):
        point = images.clone().requires_grad_()
        output = model(point)
        probabilities.append(torch.softmax(output, -1).detach())
        gradients.append(torch.autograd.grad(probability(output), point)[0])
    torch.testing.assert_close(found, torch.stack(gradients).mean(0))
    torch.manual_seed(3)
    torch.testing.assert_close(torch.softmax(attacked(images), -1), torch.stack(probabilities).mean(0))
    assert (attacked.forwards, attacked.backwards) == (2 * 7 * 5, 7 * 5), "every draw is counted"


def test_draws_of_members_are_averaged_member_by_member() -> None:
    ensemble = Ensemble([Noisy(), Noisy()])
    images = torch.rand(3, 1, 8, 8)
    torch.manual_seed(1)
    found = AttackedModel(ensemble, eot=5).member_logits(images)
    torch.manual_seed(1)
    wanted = torch.stack([torch.softmax(ensemble.member_logits(images), -1) for _ in range(5)]).mean(0)
    torch.testing.assert_close(found.exp(), wanted)


def test_a_model_that_draws_nothing_is_attacked_as_without_an_average(
    ensemble: Ensemble, digits: tuple[Tensor, Tensor]
) -> None:
    images = digits[0][:10]
    with prepared(ensemble):
        plain, averaged = (AttackedModel(ensemble, eot=eot)(images) for eot in (1, 3))
    torch.testing.assert_close(plain, averaged, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "spec",
    [
        "fgsm(eps=0.1{})",
        "pgd(eps=0.1,steps=3{})",
        "pgd@native(eps=0.0001,steps=3{})",
        "pgd@art(eps=0.1,steps=3{})",
        "pgd@foolbox(eps=0.1,steps=3{})",
        "torchattacks:DIFGSM(eps=0.1,steps=3{})",
        "apgd-ce(eps=0.1,steps=4{})",
    ],
)
def test_every_library_sees_the_average(spec: str, digits: tuple[Tensor, Tensor]) -> None:
    """An attack of the same length makes as many times the passes as it averages draws."""
    images, model = digits[0][:4], Noisy(1e-4).eval()
    labels = model(images).argmax(-1).numpy()  # right, so that none is done before it begins
    with prepared(model):
        plain, averaged = (craft(model, parse_attack(spec.format(eot)), images, labels, 0, 0) for eot in ("", ",eot=5"))
    assert averaged.backwards == 5 * plain.backwards > 0
    assert averaged.forwards == 5 * plain.forwards


def test_a_file_of_the_user_gets_it_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def attack(model, images, labels):\n    model(images)\n    return images\n")
    named = parse_attack(f"{tmp_path}/mine.py:attack(eot=3,bound=l2:0.5)")
    assert named.eot == 3 and named.parameters == "eot=3,bound=l2:0.5"
    images = torch.rand(2, 1, 8, 8)
    assert craft(Noisy().eval(), named, images, np.zeros(2, dtype=np.int64), 0, 0).forwards == 6


# --- specs and cells ---


@pytest.mark.parametrize("eot", ["0", "-2", "many", "2.5", "1e3"])
def test_draws_that_are_no_number_are_bad_input(eot: str) -> None:
    with pytest.raises(BadInput, match="eot"):
        parse_attack(f"pgd(eps=0.1,eot={eot})")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("pgd(eps=0.1,eot=20)", "pgd@torchattacks(eps=0.1,eot=20)"),
        ("pgd(eot=1,eps=0.1)", "pgd@torchattacks(eps=0.1)"),
        ("cw(c=1,eot=4,bound=l2:0.5)", "cw@foolbox(c=1,eot=4,bound=l2:0.5)"),
        ("torchattacks:DIFGSM(eps=0.1,eot=4)", None),
        ("autoattack(eps=0.1,version=rand)", "autoattack@pyautoattack(eps=0.1,version=rand)"),
    ],
)
def test_an_attack_with_draws_comes_back_from_a_cell(
    spec: str, text: str | None, make_cell: Callable[..., Cell]
) -> None:
    named = parse_attack(spec)
    cell = make_cell(WhiteBox(named, "strict"))
    back = from_json(to_json(cell))
    assert back == cell and back.task.attack is not None and back.task.attack.eot == named.eot
    assert parse_attack(named.text) == named
    if text is not None:
        assert named.text == text


def test_draws_are_part_of_the_identity_and_of_the_cost() -> None:
    plain, averaged = parse_attack("pgd(eps=0.1)"), parse_attack("pgd(eps=0.1,eot=20)")
    assert plain.settings() != averaged.settings() and "eot" not in plain.settings()
    assert averaged.gradients(64, 10) == 20 * plain.gradients(64, 10)
    assert AutoAttack(0.1).settings() == {"eps": 0.1}, "cells of the standard version stay what they were"
    assert AutoAttack(0.1, version="rand").gradients(64, 10) == 2 * 20 * 100
    assert AutoAttack(0.1, version="rand").left_out(2) == ("apgd-dlr",)


# --- the planted defense ---


def _judged(model: nn.Module, digits: tuple[Tensor, Tensor], *attacks: str, **settings: Any) -> pd.DataFrame:
    return evaluate(model, digits[0][:COUNT], digits[1][:COUNT], list(attacks), **settings)


def test_plain_pgd_overstates_a_randomised_defense_and_eot_and_arc_do_not(
    parts: list[nn.Module], digits: tuple[Tensor, Tensor]
) -> None:
    plain, averaged, arc = f"pgd(eps={EPS})", f"pgd(eps={EPS},eot=20)", f"arc(eps={EPS})"
    table = _judged(Drawing(parts).eval(), digits, plain, averaged, arc)
    overstated, true, members = table["accuracy"]
    assert table["clean_accuracy"].min() > 70
    assert overstated - max(true, members) > 15
    assert table["ci_low"][0] > max(table["ci_high"][1:])
    flags = ["randomised-output" in words for words in table["flags"]]
    assert flags == [True, False, False]
    assert "eot=20" in table["flags"][0], "the flag names the remedy"


def test_a_random_output_is_judged_by_twenty_draws(parts: list[nn.Module], digits: tuple[Tensor, Tensor]) -> None:
    records: dict[str, pd.DataFrame] = {}
    _judged(Drawing(parts).eval(), digits, f"fgsm(eps={EPS})", records=records)
    exact: dict[str, pd.DataFrame] = {}
    _judged(Ensemble(parts, combine="random").eval(), digits, f"fgsm(eps={EPS})", records=exact)
    drawn, known = (next(iter(one.values()))["p_clean"].to_numpy() for one in (records, exact))
    np.testing.assert_allclose(20 * drawn, np.round(20 * drawn), atol=1e-9)
    assert abs(drawn.mean() - known.mean()) < 0.03, "the draws estimate what the members give exactly"
    again: dict[str, pd.DataFrame] = {}
    _judged(Drawing(parts).eval(), digits, f"fgsm(eps={EPS})", records=again)
    pd.testing.assert_series_equal(next(iter(again.values()))["p_correct"], next(iter(records.values()))["p_correct"])


def test_the_reference_for_randomised_models_runs(parts: list[nn.Module], digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits[0][:6], digits[1][:6]
    table = evaluate(Drawing(parts).eval(), images, labels, [f"autoattack(eps={EPS},version=rand)"])
    assert table["flags"].item() == "" and table["accuracy"].item() < table["clean_accuracy"].item()


def test_a_worst_case_without_an_average_is_flagged(parts: list[nn.Module], digits: tuple[Tensor, Tensor]) -> None:
    table = evaluate(Drawing(parts).eval(), digits[0][:6], digits[1][:6], [f"pgd(eps={EPS})"], suite="quick")
    assert "randomised-output" in table["flags"].item()
