"""Attacks in L2 and L1, and attacks that look for the smallest perturbation, on a model where answers are known."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import foolbox
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from benchmark.api import evaluate
from benchmark.attacks import ATTACKS, parse_attack, recorded_class
from benchmark.attacks.bounds import NORMS, Bound, Norm
from benchmark.attacks.definitions import APGDCE, FMN, PGD, Attack
from benchmark.attacks.foolbox_backend import L0FMN
from benchmark.harness.crafting import craft
from benchmark.harness.prepared import predict, prepared
from benchmark.harness.verification import project
from benchmark.plan.published import published_accuracy
from defenses.checkpoints import load_checkpoint
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble

Digits = tuple[Tensor, Tensor]
RADII = {"l2": 1.0, "l1": 5.0}


@pytest.fixture
def robust(robust_checkpoint: Path) -> Ensemble:
    return load_checkpoint(robust_checkpoint)


# --- specs ---


def test_without_a_norm_an_attack_and_its_settings_are_what_they_were() -> None:
    named = parse_attack("pgd(eps=0.1)")
    assert named.text == "pgd@torchattacks(eps=0.1)" == parse_attack("pgd(eps=0.1,norm=linf)").text
    assert "norm" not in named.attack.settings() and named.bound == Bound("linf", 0.1)
    assert parse_attack("pgd(norm=l2,eps=0.5)").attack.settings()["norm"] == "l2"


def test_an_attack_in_another_norm_has_its_bound_and_its_text() -> None:
    named = parse_attack("pgd(eps=2.5,norm=l2,steps=20)")
    assert (named.label, named.bound) == ("pgd(eps=2.5,norm=l2,steps=20)", Bound("l2", 2.5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pgd(eps=2.5)", "at most 1"),
        ("pgd(eps=0,norm=l2)", "above 0"),
        ("pgd(eps=inf,norm=l1)", "finite"),
        ("pgd(eps=1,norm=l3)", "l3"),
        ("pgd@torchattacks(eps=5,norm=l1)", "native and art and foolbox have"),
        ("square@art(eps=5,norm=l1)", "pyautoattack has"),
        ("fmn(norm=l7)", "l7"),
        ("fmn", "needs norm"),
        ("ddn(gamma=1)", "below 1"),
    ],
)
def test_a_radius_or_a_norm_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_attack(text)


def test_the_paper_has_no_number_for_another_norm() -> None:
    asked = ("cifar10", 3, parse_attack("pgd(eps=0.01)"), "", "baseline")
    assert published_accuracy(*asked) is not None
    assert published_accuracy(*asked[:2], parse_attack("pgd(eps=0.01,norm=l2)"), *asked[3:]) is None


def test_the_norm_that_an_attack_minimises_is_known_from_a_record_too() -> None:
    assert parse_attack("cw(c=1)").attack.minimised == "l2" and parse_attack("ead(c=1)").attack.minimised == "l1"
    assert FMN("l0").minimised == "l0" and PGD(0.1).minimised is None
    assert recorded_class("fmn")("norm=l1", (("norm", "l1"), ("gone", 3))).minimised == "l1"


# --- attacks within a ball ---

IN_A_BALL = [
    f"{name}(eps={RADII[norm]},norm={norm}{more})"
    for name, norms, more in (
        ("pgd@native", "l2 l1", ",restarts=2"),
        ("pgd@native", "l2 l1", ",loss=margin"),
        ("pgd@torchattacks", "l2", ""),
        ("pgd@art", "l2 l1", ""),
        ("pgd@foolbox", "l2 l1", ""),
        ("pgd@native", "l2 l1", ",loss=pma"),
        ("apgd", "l2 l1", ",steps=10,loss=pma"),
        ("apgd-ce", "l2 l1", ",steps=10"),
        ("apgd-ce@torchattacks", "l2", ",steps=10"),
        ("apgd-ce@art", "l2", ",steps=10"),
        ("apgd-t", "l2 l1", ",steps=10,targets=3"),
        ("apgd-t@torchattacks", "l2", ",steps=10,targets=3"),
        ("fab-t", "l2 l1", ",steps=10,targets=3"),
        ("fab-t@torchattacks", "l2", ",steps=10,targets=3"),
        ("square", "l2 l1", ",queries=60"),
        ("square@torchattacks", "l2", ",queries=60"),
        ("square@art", "l2", ",queries=60"),
        ("mora", "l2 l1", ",steps=10,targets=1"),
        ("mora", "l2 l1", ",steps=10,targets=1,variant=reference"),
    )
    for norm in norms.split()
]


@pytest.mark.parametrize("spec", IN_A_BALL)
def test_in_every_library_the_attack_fools_and_holds_its_bound(spec: str, ensemble: Ensemble, digits: Digits) -> None:
    images, labels = digits[0][:16], digits[1][:16]
    named = parse_attack(spec)
    assert named.bound is not None
    with prepared(ensemble):
        found = craft(ensemble, named, images, labels.numpy(), 0, 0)
        left = predict(ensemble, found.images, 16) == labels.numpy()
    assert not found.found["out_of_ball"].any() and not found.found["out_of_box"].any()
    order = {"l2": 2, "l1": 1}[named.bound.norm]
    sizes = np.linalg.norm((found.images - images).double().flatten(1).numpy(), order, axis=1)
    assert sizes.max() <= named.bound.radius * (1 + 1e-4)
    clean = predict(ensemble, images, 16) == labels.numpy()
    assert left.sum() < clean.sum(), "at least one image is fooled"


class _Plane(nn.Module):
    """Two classes either side of a plane: the distance of an image to it is known in every norm."""

    def __init__(self, weight: Tensor, offset: float) -> None:
        super().__init__()
        self.weight, self.offset = nn.Parameter(weight), offset

    def forward(self, images: Tensor) -> Tensor:
        value = images.flatten(1) @ self.weight - self.offset
        return torch.stack([value, -value], dim=1)


@pytest.fixture
def plane() -> _Plane:
    weight = torch.linspace(-1, 1, 16)
    return _Plane(weight, -0.6)


@pytest.fixture
def around() -> Tensor:
    return 0.5 + 0.1 * torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def _distance(plane: _Plane, images: Tensor, norm: Norm) -> np.ndarray:
    """|w·x − b| divided by the dual norm of w; nothing is near the edge of the box."""
    value = plane(images)[:, 0].detach().double().abs().numpy()
    weight = plane.weight.detach().double().numpy()
    dual = {"linf": np.abs(weight).sum(), "l2": np.linalg.norm(weight), "l1": np.abs(weight).max()}[norm]
    return value / dual


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_smallest_perturbation_of_fmn_is_the_distance_to_the_plane(
    norm: Norm, plane: _Plane, around: Tensor
) -> None:
    labels = np.zeros(8, dtype=np.int64)
    with prepared(plane):
        found = craft(plane, parse_attack(f"fmn(norm={norm},steps=300)"), around, labels, 0, 0)
        assert (predict(plane, found.images, 8) == 1).all()
    wanted = _distance(plane, around, norm)
    assert (found.found[norm] >= wanted * (1 - 1e-4)).all()
    assert (found.found[norm] <= wanted * 1.15).all()


def test_ddn_finds_the_plane_in_l2(plane: _Plane, around: Tensor) -> None:
    with prepared(plane):
        found = craft(plane, parse_attack("ddn(steps=300)"), around, np.zeros(8, dtype=np.int64), 0, 0)
    wanted = _distance(plane, around, "l2")
    assert (found.found["l2"] >= wanted * (1 - 1e-4)).all() and (found.found["l2"] <= wanted * 1.15).all()


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_pgd_in_a_ball_fools_beyond_the_distance_and_not_within_it(norm: Norm, plane: _Plane, around: Tensor) -> None:
    nearest = _distance(plane, around, norm)
    labels = torch.zeros(8, dtype=torch.int64)
    for factor, fooled in ((0.95, False), (1.1, True)):
        for image, distance in enumerate(nearest):
            eps = factor * float(distance)
            spec = f"pgd@native(eps={eps},norm={norm},steps=60,step_size={eps / 5})"
            row = evaluate(plane, around[image : image + 1], labels[:1], [spec]).iloc[0]
            assert (row["accuracy"] == 0) == fooled


@pytest.mark.parametrize("norm", NORMS)
def test_fmn_gives_small_perturbations_that_fool_in_four_norms(norm: Norm, ensemble: Ensemble, digits: Digits) -> None:
    images, labels = digits[0][:12], digits[1][:12]
    records: dict[str, pd.DataFrame] = {}
    evaluate(ensemble, images, labels, [f"fmn(norm={norm})", f"fmn(norm={norm},steps=3)"], records=records)
    long, short = records.values()
    fooled = long["attacked"] & ~long["correct"]
    assert (fooled == long["attacked"]).all() and fooled.sum() >= 6, "also where pixels are at the edge of the box"
    assert not (long["out_of_box"] | long["not_finite"]).any()
    both = fooled & ~short["correct"]
    assert long.loc[both, norm].mean() <= short.loc[both, norm].mean()


def test_the_l0_ball_of_fmn_may_grow_as_wide_as_the_image(robust: Ensemble, digits: Digits) -> None:
    with prepared(robust):
        found = craft(robust, parse_attack("fmn(norm=l0,steps=150)"), digits[0][:6], digits[1][:6].numpy(), 0, 0)
    assert np.isfinite(found.found["l0"]).all()


class _Unshaken(nn.Module):
    """Two classes, of which the first always wins."""

    def forward(self, images: Tensor) -> Tensor:
        small = 1e-3 * images.flatten(1).sum(1)
        return torch.stack([10 + small, -small], 1)


def test_bare_l0_fmn_raises_an_error_where_its_ball_is_as_wide_as_the_image_and_ours_does_not() -> None:
    images, labels = (
        torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)),
        torch.zeros(3, dtype=torch.int64),
    )
    model, goal = foolbox.PyTorchModel(_Unshaken().eval(), bounds=(0, 1)), foolbox.criteria.Misclassification(labels)
    foolbox.attacks.L0FMNAttack(steps=14).run(model, images, goal)
    with pytest.raises(IndexError):
        foolbox.attacks.L0FMNAttack(steps=15).run(model, images, goal)
    assert torch.equal(L0FMN(steps=15).run(model, images, goal), images), "what it cannot fool comes back clean"


# --- worst cases ---


@pytest.mark.parametrize("bound", [Bound("l2", 0.3), Bound("l1", 1.2)])
def test_the_strong_tier_is_at_most_each_of_its_attacks_image_by_image(
    bound: Bound, robust: Ensemble, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmark.evaluations import worst_case

    short = (
        "pgd({ball})",
        "mora({ball},steps=10,targets=0)",
        "pgd@native({ball}) from members",
        "square({ball},queries=20)",
    )
    monkeypatch.setitem(worst_case.SUITES_IN_L2_AND_L1, "full", short)
    images, labels = digits[0][:30], digits[1][:30]
    records: dict[str, pd.DataFrame] = {}
    spec = f"pgd(eps={bound.radius},norm={bound.norm})"
    row = evaluate(robust, images, labels, [spec], tier="strong", records=records).iloc[0]
    (worst,) = records.values()
    assert row["parameters"] == f"eps={bound.radius:g},norm={bound.norm}"
    alone: dict[str, pd.DataFrame] = {}
    evaluate(robust, images, labels, [spec], records=alone)
    assert (worst["correct"] <= alone[parse_attack(spec).text]["correct"]).all()
    assert 0 < worst["correct"].sum() < 30
    fooled = worst["attacked"] & ~worst["correct"]
    assert (worst.loc[fooled, bound.norm] <= bound.radius * (1 + 1e-4)).all()


def test_apgd_in_l1_with_fewer_steps_than_radii_still_runs(ensemble: Ensemble, digits: Digits) -> None:
    with prepared(ensemble):
        found = craft(
            ensemble, parse_attack("apgd-ce(eps=3,norm=l1,steps=2)"), digits[0][:4], digits[1][:4].numpy(), 0, 0
        )
    assert not found.found["out_of_ball"].any() and APGDCE(3.0, norm="l1").bound == Bound("l1", 3)


# --- an attack that leaves its bound ---


@dataclass(frozen=True)
class Leaver(Attack):
    """Goes straight towards the negative of the image, whatever bound it says it keeps."""

    backends: ClassVar[dict[str, str]] = {"native": "leaver:run"}

    norm: Norm
    radius: float

    @property
    def bound(self) -> Bound:
        return Bound(self.norm, self.radius)


def _away(model: nn.Module, images: Tensor, labels: Tensor, attack: Leaver) -> Tensor:
    adversarial = 1 - images
    adversarial[::2] = images[::2]  # every second one is inside
    return adversarial


@pytest.mark.parametrize(("norm", "radius"), [("linf", 0.05), ("l2", 0.5), ("l1", 2.0), ("l0", 3.0)])
def test_an_image_outside_its_ball_is_counted_projected_judged_again_and_flagged(
    norm: Norm, radius: float, ensemble: Ensemble, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "leaver", SimpleNamespace(run=_away))
    monkeypatch.setitem(ATTACKS._targets, "leaver", Leaver)
    images, labels = digits[0][:20], digits[1][:20]
    records: dict[str, pd.DataFrame] = {}
    row = evaluate(ensemble, images, labels, [f"leaver(norm={norm},radius={radius})"], records=records).iloc[0]
    (found,) = records.values()
    attacked = np.flatnonzero(found["attacked"])
    assert found["out_of_ball"].to_numpy()[attacked].tolist() == [place % 2 == 1 for place in range(len(attacked))]
    assert row["out_of_ball"] == len(attacked) // 2 > 0 and "out-of-ball" in row["flags"]
    assert (found[norm] <= radius * (1 + 1e-5) + 1e-5).all()
    with prepared(ensemble):
        inside = project(images[attacked], 1 - images[attacked], Bound(norm, radius))
        inside[::2] = images[attacked][::2]
        judged = predict(ensemble, inside, 20)
    assert found["adversarial_prediction"].to_numpy()[attacked].tolist() == judged.tolist()
