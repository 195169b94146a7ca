"""MCE, MRBoost, BARRE and iGAT compute what they say, and each moves what it optimises on digits."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmark.ensembles.training import training_data
from defenses.catalogue import parse_defense
from defenses.checkpoints import load_checkpoint, read_provenance
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble, build_ensemble
from defenses.objectives import ADP, BARRE, IGAT, MCE, Baseline, Defense, MRBoost, Place, Terms, cross_entropy, total
from defenses.objectives.adversarial_training import sign_ascent
from defenses.training.data import TrainingData
from defenses.training.loop import train
from defenses.training.recipes import fast
from defenses.training.request import TrainingRequest

LABELS = torch.tensor([0, 2, 1])


def softmax(values: np.ndarray) -> np.ndarray:
    shifted = np.exp(values - values.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(3, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# --- margin cross-entropy ---


def test_margin_cross_entropy_by_hand() -> None:
    """Logits (ln 2, 0, 0), true class 0: softmax(−z) is (1/5, 2/5, 2/5), so each wrong class gives ln 5/2."""
    logits = torch.tensor([[[math.log(2), 0.0, 0.0]]])
    terms = MCE(weight=3).objective(logits, torch.tensor([0]))
    assert terms["ece"].item() == pytest.approx(math.log(2))
    assert terms["wrong_classes"].item() == pytest.approx(3 * math.log(2.5))


def test_margin_cross_entropy_agrees_with_numpy(logits: Tensor) -> None:
    found = MCE(weight=0.7).objective(logits, LABELS)["wrong_classes"].numpy()
    unlikely = -np.log(softmax(-logits.numpy()))
    expected = [sum(np.delete(unlikely[k, n], LABELS[n]).mean() for k in range(3)) * 0.7 for n in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("defense", [MCE(weight=0.5), IGAT(weight=0.5, allocation="best", inner=ADP(2, 0.5))])
def test_gradients_agree_with_finite_differences(logits: Tensor, defense: MCE | IGAT) -> None:
    logits = (logits / 4).requires_grad_()  # away from the clip of iGAT's regulariser
    assert torch.autograd.gradcheck(lambda z: total(defense.objective(z, LABELS)), (logits,))


# --- iGAT ---


def test_only_images_that_the_ensemble_gets_wrong_have_iGATs_terms() -> None:  # noqa: N802
    right, wrong = [4.0, 0.0, 0.0], [0.0, 1.0, 0.0]
    logits = torch.tensor([[right, wrong], [right, wrong]])
    terms = IGAT(weight=2, allocation="best").objective(logits, torch.tensor([0, 0]))
    p = math.e / (math.e + 2)
    assert terms["allocated"].tolist() == pytest.approx([0, math.log(math.e + 2)])
    assert terms["wrong_class"].tolist() == pytest.approx([0, 2 * 2 * -math.log(1 - p)])
    assert "ece" not in terms


def test_the_largest_wrong_probability_is_clipped_at_99_percent() -> None:
    logits = torch.tensor([[[0.0, 50.0]]])
    assert IGAT(weight=1).objective(logits, torch.tensor([0]))["wrong_class"].item() == pytest.approx(
        -math.log(0.01), rel=1e-5
    )


def test_the_inner_objective_keeps_its_other_terms(logits: Tensor) -> None:
    inner = ADP(2, 0.5)
    terms, own = IGAT(inner=inner).objective(logits, LABELS), inner.objective(logits, LABELS)
    assert set(terms) == {"entropy", "led", "allocated", "wrong_class"}
    assert torch.equal(terms["entropy"], own["entropy"]) and torch.equal(terms["led"], own["led"])


@pytest.mark.parametrize(("allocation", "shares"), [("rank", [1 / 7, 2 / 7, 4 / 7]), ("uniform", [1 / 3] * 3)])
def test_members_are_drawn_by_their_rank(allocation: Any, shares: list[float]) -> None:
    losses = torch.tensor([[3.0], [1.0], [2.0]]).expand(3, 7000)  # member 1 is the best, member 0 the worst
    defense = IGAT(allocation=allocation, generator=torch.Generator().manual_seed(0))
    counts = Counter(defense.allocate(losses).tolist())
    assert [counts[member] / 7000 for member in (0, 2, 1)] == pytest.approx(shares, abs=0.02)


def test_a_batch_is_the_clean_images_and_their_adversarial_twins() -> None:
    ensemble = build_ensemble("mini-resnet(width=4)", 2, (1, 8, 8), 10, seed=0)
    images, labels = torch.rand(6, 1, 8, 8), torch.arange(6)
    found, twice = IGAT(eps=0.1).batch(ensemble, images, labels, torch.Generator().manual_seed(0))
    assert torch.equal(found[:6], images) and torch.equal(twice, torch.cat([labels, labels]))
    assert 0 < (found[6:] - images).abs().max().item() <= 0.1 + 1e-6


def test_around_dverge_the_distilled_loss_stays() -> None:
    named = parse_defense("igat+dverge(warm_up=0)")
    ensemble = build_ensemble("mini-resnet(width=4)", 2, (1, 8, 8), 10, seed=0).train()
    generator = torch.Generator().manual_seed(0)
    defense = named.defense.at(Place(1, 2), ensemble, generator)
    images, labels = defense.batch(ensemble, torch.rand(6, 1, 8, 8), torch.arange(6), generator)
    _, terms = defense.forward(ensemble, images, labels)
    assert {name: tuple(term.shape) for name, term in terms.items()} == {
        "distilled": (6,),
        "allocated": (6,),
        "wrong_class": (6,),
    }


# --- margin boosting ---


def test_weights_follow_the_margin_of_the_finished_members_and_have_mean_one() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.tensor([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1]]).log()

    defense = MRBoost(eta=2, finished=Ensemble([Fixed()]))
    found = defense.weights(torch.zeros(2, 1, 1, 1), torch.tensor([0, 0]))
    raw = np.exp(-2 * np.array([0.7, -0.3]))
    np.testing.assert_allclose(found.numpy(), raw / raw.mean(), rtol=1e-6)


def test_the_first_member_weighs_all_images_alike() -> None:
    assert MRBoost().weights(torch.zeros(5, 1, 2, 2), torch.zeros(5).long()).tolist() == [1.0] * 5


def test_a_member_is_attacked_together_with_the_finished_ones() -> None:
    whole = build_ensemble("mini-resnet(width=4)", 2, (1, 8, 8), 10, seed=0).eval()
    images, labels = torch.rand(4, 1, 8, 8), torch.arange(4)
    defense = MRBoost(eps=0.05, steps=3, finished=whole.member(0))
    found, _ = defense.batch(whole.member(1), images, labels, torch.Generator().manual_seed(5))
    start = torch.rand(images.shape, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(found, sign_ascent(whole, images, labels, 0.05, 3, start))


# --- boosting of a randomised ensemble ---


def test_barre_attacks_the_expected_loss_of_the_members_so_far() -> None:
    """One step, from hand-made gradients: of the mean of the cross-entropies, not of the mean probability's."""
    whole = build_ensemble("mini-resnet(width=4)", 2, (1, 8, 8), 10, seed=0).eval()
    images, labels = torch.rand(4, 1, 8, 8), torch.arange(4)
    found, _ = BARRE(eps=0.05, steps=1, finished=whole.member(0)).batch(
        whole.member(1), images, labels, torch.Generator().manual_seed(5)
    )
    start = torch.rand(images.shape, generator=torch.Generator().manual_seed(5))
    start = (images + 0.05 * (2 * start - 1)).clamp(0, 1).requires_grad_()
    losses = [torch.nn.functional.cross_entropy(whole.member_logits(start)[k], labels, reduction="sum") for k in (0, 1)]
    (gradient,) = torch.autograd.grad((losses[0] + losses[1]) / 2, start)
    moved = (start + 0.05 * gradient.sign()).clamp(images - 0.05, images + 0.05).clamp(0, 1)
    torch.testing.assert_close(found, moved.detach())


def test_barre_moves_images_of_confident_members_along_the_signs_of_float64() -> None:
    torch.manual_seed(0)
    whole, common = (
        Ensemble([nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(2)]).eval(),
        torch.randn(10, 64),
    )
    for member in whole.members:
        member[1].weight.data = 6 * (common + 0.02 * torch.randn(10, 64))
    images = 0.2 + 0.6 * torch.rand(100, 1, 8, 8)
    labels = whole.member_logits(images).sum(0).argmax(-1)
    found, _ = BARRE(eps=0.05, steps=1, finished=whole.member(0)).batch(
        whole.member(1), images, labels, torch.Generator().manual_seed(5)
    )
    start = torch.rand(images.shape, generator=torch.Generator().manual_seed(5))
    start = images + 0.05 * (2 * start - 1)
    point = start.double().requires_grad_()
    logits = copy.deepcopy(whole).double().member_logits(point)
    sum(functional.cross_entropy(each, labels, reduction="sum") for each in logits).backward()
    expected = images + (start + 0.05 * point.grad.sign().float() - images).clamp(-0.05, 0.05)
    agree = ((found - expected).abs() < 1e-6).flatten(1).float().mean(1)
    assert (agree > 0.99).sum() >= 98, "one logarithm of the softmax loses signs"


def test_barre_trains_a_randomised_ensemble_that_is_more_robust(digits: TrainingData, tmp_path: Path) -> None:
    """Robustness of a draw: expected over the members, on images made against their expected loss."""

    def expected_robust_accuracy(path: Path) -> float:
        ensemble = load_checkpoint(path)
        generator, defense = torch.Generator().manual_seed(0), BARRE(eps=0.1)
        found, labels = defense.batch(ensemble, digits.test.images(), digits.test.labels, generator)
        with torch.no_grad():
            return (ensemble.member_logits(found).argmax(-1) == labels).float().mean().item()

    path = _trained("barre(eps=0.1)", digits, tmp_path / "barre", epochs=6)
    plain = _trained("baseline", digits, tmp_path / "baseline", epochs=6)
    assert expected_robust_accuracy(path) > expected_robust_accuracy(plain) + 0.1
    origin = read_provenance(path)
    assert origin.combine == "random" and load_checkpoint(path).combination.randomised
    assert origin.scores["test_accuracy"] == pytest.approx(np.mean(origin.scores["test_member_accuracy"]), abs=2e-6)


def test_igat_refuses_an_objective_of_which_it_would_leave_nothing(logits: Tensor) -> None:
    class Plain(Defense):
        def objective(self, logits: Tensor, labels: Tensor) -> Terms:
            return {"ece": cross_entropy(logits, labels).sum(0)}

    with pytest.raises(BadInput, match="Plain"):
        IGAT(inner=Plain()).objective(logits, LABELS)


def test_the_warm_up_of_dverge_is_a_baseline_inside_igat_too() -> None:
    defense = parse_defense("igat+dverge").defense
    ensemble = build_ensemble("mini-resnet(width=4)", 2, (1, 8, 8), 10)
    kinds = [type(defense.at(Place(epoch, 8), ensemble, torch.Generator())) for epoch in range(8)]
    assert kinds == [Baseline] * 2 + [IGAT] * 6


# --- on digits ---


@pytest.fixture(scope="module")
def digits() -> TrainingData:
    return training_data("digits", fast("tiny"), 0)


def _trained(spec: str, digits: TrainingData, out: Path, epochs: int = 3, **others: Any) -> Path:
    recipe = replace(fast("tiny"), epochs=epochs)
    return train(TrainingRequest(parse_defense(spec), "mini-resnet(width=8)", 2, recipe), digits, out, **others)


def _robust_accuracy(path: Path, digits: TrainingData) -> float:
    ensemble, images, labels = load_checkpoint(path), digits.test.images(), digits.test.labels
    start = torch.rand(images.shape, generator=torch.Generator().manual_seed(0))
    found = sign_ascent(ensemble, images, labels, 0.1, 10, start)
    with torch.no_grad():
        return (ensemble(found).argmax(1) == labels).float().mean().item()


def test_igat_and_mrboost_leave_a_more_robust_ensemble_than_the_baseline(digits: TrainingData, tmp_path: Path) -> None:
    found = {
        spec: _robust_accuracy(_trained(spec, digits, tmp_path / str(number), epochs=6), digits)
        for number, spec in enumerate(("baseline", "igat(eps=0.1)", "mrboost(eps=0.1)"))
    }
    assert found["igat(eps=0.1)"] > found["baseline"] + 0.1
    assert found["mrboost(eps=0.1)"] > found["baseline"] + 0.1


def test_margin_cross_entropy_lowers_its_second_term(digits: TrainingData, tmp_path: Path) -> None:
    def term(spec: str) -> float:
        ensemble = load_checkpoint(_trained(spec, digits, tmp_path / spec))
        with torch.no_grad():
            logits = ensemble.member_logits(digits.test.images())
        return MCE().objective(logits, digits.test.labels)["wrong_classes"].mean().item()

    assert term("mce") < 0.95 * term("baseline")


@pytest.mark.parametrize("spec", ["mrboost(steps=2)", "barre(steps=2)", "igat(steps=2)+adp-2-0.5", "advt-fgsm+mce"])
def test_an_interrupted_training_ends_with_the_same_weights(digits: TrainingData, tmp_path: Path, spec: str) -> None:
    def stop(row: dict[str, Any]) -> None:
        if row["epoch"] == 3:
            raise KeyboardInterrupt

    small = replace(digits, train=digits.train.subset(torch.arange(64)))
    whole = _trained(spec, small, tmp_path / "whole", epochs=4)
    with pytest.raises(KeyboardInterrupt):
        _trained(spec, small, tmp_path / "broken", epochs=4, on_epoch=stop)
    resumed = _trained(spec, small, tmp_path / "broken", epochs=4)
    assert read_provenance(resumed).weights_sha256 == read_provenance(whole).weights_sha256


@pytest.mark.parametrize(
    "spec",
    [
        "advt-pgd+mrboost",
        "advt-pgd+igat",
        "igat+mrboost",
        "igat+gal",
        "igat+label-smoothing-0.6",
        "igat(eps=2)",
        "mrboost(eta=-1)",
        "barre(steps=0)",
        "advt-pgd+barre",
        "mce(weight=-1)",
    ],
)
def test_what_does_not_go_together_is_refused(spec: str) -> None:
    with pytest.raises(BadInput):
        parse_defense(spec)
