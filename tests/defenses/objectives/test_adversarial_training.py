"""Adversarial training attacks correctly: in the ball, in the box, uphill, and without side effects."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from defenses.members.ensemble import Ensemble, build_ensemble
from defenses.objectives import ADP, Baseline
from defenses.objectives.adversarial_training import AdversarialTraining, sign_ascent

Batch = tuple[Tensor, Tensor]


@pytest.fixture
def ensemble() -> Ensemble:
    """Three members with running statistics that differ from those of any batch."""
    ensemble = build_ensemble("mini-resnet(width=4)", 3, (1, 8, 8), 10, torch.full((1, 8, 8), 0.3), seed=0)
    generator = torch.Generator().manual_seed(9)
    for _ in range(5):
        ensemble(torch.rand(32, 1, 8, 8, generator=generator) ** 2)
    return ensemble.train()


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(16, 1, 8, 8, generator=generator)
    images[:, :, :2] = 0.0  # some pixels at the walls of the box
    images[:, :, 2:4] = 1.0
    return images, torch.randint(10, (16,), generator=generator)


def _loss(ensemble: Ensemble, images: Tensor, labels: Tensor) -> float:
    """Cross-entropy of the averaged prediction in training mode, without touching the ensemble."""
    with torch.no_grad():
        mean = copy.deepcopy(ensemble).train().member_logits(images).softmax(-1).mean(0)
    return functional.nll_loss(mean.log(), labels).item()


@pytest.mark.parametrize("attack", ["fgsm", "pgd"])
@pytest.mark.parametrize("batch_norm", ["batch", "running"])
@pytest.mark.parametrize("against", ["true", "predicted"])
def test_the_batch_is_the_clean_half_and_an_attacked_half_that_is_harder(
    ensemble: Ensemble, batch: Batch, attack: str, batch_norm: str, against: str
) -> None:
    defense = AdversarialTraining(attack, batch_norm=batch_norm, labels=against)
    images, labels = defense.batch(ensemble, *batch, torch.Generator().manual_seed(0))
    clean, adversarial = images.chunk(2)
    assert torch.equal(clean, batch[0])
    assert torch.equal(labels, torch.cat([batch[1], batch[1]]))
    moved = (adversarial - clean).abs().max().item()
    assert 0.01 <= moved <= 0.05 + 1e-6
    assert adversarial.min() >= 0 and adversarial.max() <= 1
    assert not images.requires_grad
    if against == "true" and batch_norm == "batch":
        assert _loss(ensemble, adversarial, batch[1]) > _loss(ensemble, clean, batch[1]) + 0.01


def test_eps_is_drawn_anew_for_every_batch_between_its_bounds(ensemble: Ensemble, batch: Batch) -> None:
    generator = torch.Generator().manual_seed(0)
    defense = AdversarialTraining("fgsm")
    drawn = []
    for _ in range(40):
        clean, adversarial = defense.batch(ensemble, *batch, generator)[0].chunk(2)
        drawn.append((adversarial - clean).abs().max().item())
    assert len(set(drawn)) == 40
    assert 0.01 <= min(drawn) < 0.015 and 0.045 < max(drawn) <= 0.05 + 1e-6
    assert sum(drawn) / 40 == pytest.approx(0.03, abs=0.006)


@pytest.mark.parametrize("batch_norm", ["batch", "running"])
def test_the_attack_leaves_statistics_gradients_and_modes_alone(
    ensemble: Ensemble, batch: Batch, batch_norm: str
) -> None:
    state = copy.deepcopy(ensemble.state_dict())
    AdversarialTraining("pgd", batch_norm=batch_norm).batch(ensemble, *batch, torch.Generator())
    torch.testing.assert_close(ensemble.state_dict(), state, rtol=0, atol=0)
    assert all(module.training for module in ensemble.modules())
    assert all(parameter.grad is None for parameter in ensemble.parameters())


@pytest.mark.parametrize("batch_norm", ["batch", "running"])
def test_pgd_is_ten_sign_steps_of_a_tenth_of_eps_from_a_random_point(
    ensemble: Ensemble, batch: Batch, batch_norm: str
) -> None:
    images, labels = batch
    ours = AdversarialTraining("pgd", batch_norm=batch_norm)
    adversarial = ours.batch(ensemble, images, labels, torch.Generator().manual_seed(5))[0][16:]

    generator = torch.Generator().manual_seed(5)
    eps = 0.01 + 0.04 * torch.rand((), generator=generator).item()
    point = (images + eps * (2 * torch.rand(images.shape, generator=generator) - 1)).clamp(0, 1)
    for _ in range(10):
        model = copy.deepcopy(ensemble).train(batch_norm == "batch")
        point = point.detach().requires_grad_()
        mean = torch.stack([member(point - 0.3).softmax(-1) for member in model.members]).mean(0)
        functional.cross_entropy(mean.log(), labels).backward()
        point = point.detach() + eps / 10 * point.grad.sign()
        point = torch.minimum(torch.maximum(point, images - eps), images + eps).clamp(0, 1)
    # a gradient within rounding of zero may take another sign; all but a few pixels agree
    differing = ((adversarial - point).abs() > 1e-6).float().mean().item()
    assert differing < 0.01


def test_fgsm_is_one_whole_step_without_a_random_start(ensemble: Ensemble, batch: Batch) -> None:
    ensemble.eval()
    images, labels = batch
    point = images.clone().requires_grad_()
    functional.nll_loss(ensemble(point), labels).backward()
    expected = (images + 0.03 * point.grad.sign()).clamp(0, 1)
    torch.testing.assert_close(sign_ascent(ensemble, images, labels, 0.03, 10, None), expected)


def test_images_of_a_confident_ensemble_move_along_the_signs_of_float64(confident: Ensemble) -> None:
    ensemble, images = confident, 0.1 + 0.8 * torch.rand(200, 1, 8, 8)
    labels = ensemble(images).argmax(-1)
    found = sign_ascent(ensemble, images, labels, 0.03, 1, None)
    point = images.double().requires_grad_()
    functional.nll_loss(copy.deepcopy(ensemble).double()(point), labels).backward()
    agree = ((found - images).sign() == point.grad.sign()).flatten(1).float().mean(1)
    assert (agree < 0.99).sum() <= 4, "the negative logarithm alone loses signs on a sixth of these images"


def test_attacking_the_predicted_label_ignores_the_true_one(ensemble: Ensemble, batch: Batch) -> None:
    ensemble.eval()
    images, labels = batch
    predicted = ensemble(images).argmax(-1)
    found = sign_ascent(ensemble, images, labels, 0.03, 1, None, "predicted")
    torch.testing.assert_close(found, sign_ascent(ensemble, images, predicted, 0.03, 1, None))


def test_the_full_inner_objective_is_on_both_halves(ensemble: Ensemble, batch: Batch) -> None:
    defense = AdversarialTraining("fgsm", inner=ADP(2, 0.5))
    images, labels = defense.batch(ensemble, *batch, torch.Generator().manual_seed(0))
    logits, terms = defense.forward(ensemble, images, labels)
    assert logits.shape == (3, 32, 10)
    assert {name: len(values) for name, values in terms.items()} == {"ece": 32, "entropy": 32, "led": 32}


def test_members_may_be_trained_independently_exactly_when_the_inner_objective_allows() -> None:
    assert AdversarialTraining("pgd").separable
    assert not AdversarialTraining("pgd", inner=ADP(2, 0.5)).separable
    assert AdversarialTraining("pgd").around(ADP(2, 0.5)) == AdversarialTraining("pgd", inner=ADP(2, 0.5))
    assert AdversarialTraining("pgd", inner=ADP(2, 0.5)).around(Baseline()) == AdversarialTraining("pgd")
