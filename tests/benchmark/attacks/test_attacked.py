"""The model as attacks see it keeps its meaning, counts its own use, and draws numbers that are the image's own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmark.attacks import parse_attack
from benchmark.attacks.attacked import AttackedModel
from benchmark.harness.prepared import prepared
from defenses.members.ensemble import Ensemble

Digits = tuple[Tensor, Tensor]


# --- the output ---


def test_the_shift_keeps_everything_an_attack_may_look_at(ensemble: Ensemble, digits: Digits) -> None:
    images, labels = digits[0][:20], digits[1][:20]
    with torch.no_grad():
        plain, shifted = ensemble(images), AttackedModel(ensemble)(images)
    assert torch.allclose(plain.softmax(-1), shifted.softmax(-1), atol=1e-6)
    assert torch.equal(plain.argmax(-1), shifted.argmax(-1))
    assert torch.allclose(functional.cross_entropy(plain, labels), functional.cross_entropy(shifted, labels), atol=1e-5)
    assert torch.allclose(plain[:, :1] - plain, shifted[:, :1] - shifted, atol=1e-5)
    assert torch.equal(shifted.amin(-1), torch.zeros(20)), "no entry is negative, so masking with 0 works"


@pytest.mark.parametrize("eot", [1, 3])
def test_logits_of_one_member_per_image_are_those_among_all_members(
    eot: int, ensemble: Ensemble, digits: Digits
) -> None:
    class Own(Ensemble):
        def member_logits(self, images: Tensor) -> Tensor:
            return 2 * super().member_logits(images)

    images, members = digits[0][:7], torch.tensor([1, 0, 0, 1, 1, 0, 1])
    for model in (ensemble, Own(list(ensemble.members), ensemble.mean), ensemble.member(0)):
        chosen, attacked = members.clamp_max(len(model) - 1), AttackedModel(model.eval(), eot=eot)
        with torch.no_grad():
            wanted = attacked.member_logits(images)[chosen, torch.arange(7)]
            passes = attacked.forwards
            torch.testing.assert_close(attacked.logits_of(chosen, images), wanted, atol=1e-5, rtol=1e-5)
        assert attacked.forwards == 2 * passes == 2 * 7 * eot


def test_the_shift_does_not_change_the_gradient(ensemble: Ensemble, digits: Digits) -> None:
    images, labels = digits[0][:10], digits[1][:10]
    gradients = []
    for model in (ensemble, AttackedModel(ensemble)):
        point = images.clone().requires_grad_()
        functional.cross_entropy(model(point), labels).backward()
        gradients.append(point.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-7)


def test_a_confident_ensemble_gets_the_signs_of_float64_where_the_log_of_its_probability_loses_them(
    confident: Ensemble,
) -> None:
    ensemble, images = confident, torch.rand(200, 1, 8, 8)
    labels = ensemble(images).argmax(-1)

    def signs(model: nn.Module, loss: Callable[[nn.Module, Tensor], Tensor], dtype: torch.dtype) -> Tensor:
        point = images.to(dtype).requires_grad_()
        return torch.autograd.grad(loss(model, point), point)[0].sign()

    def cross_entropy(model: nn.Module, point: Tensor) -> Tensor:
        return functional.cross_entropy(AttackedModel(model)(point), labels, reduction="sum")

    def log_of_probability(model: nn.Module, point: Tensor) -> Tensor:
        return -model(point).exp().gather(-1, labels[:, None]).log().sum()

    exact = signs(copy.deepcopy(ensemble).double(), log_of_probability, torch.float64)
    wrong = [
        int(((signs(ensemble, loss, torch.float32) == exact).flatten(1).float().mean(1) < 0.99).sum())
        for loss in (cross_entropy, log_of_probability)
    ]
    assert wrong[0] <= 2 < 10 <= wrong[1]


def test_probabilities_are_those_of_the_averaged_prediction(ensemble: Ensemble, digits: Digits) -> None:
    images = digits[0][:10]
    with torch.no_grad():
        expected = ensemble.member_logits(images).softmax(-1).mean(0)
        assert torch.allclose(AttackedModel(ensemble, "probabilities")(images), expected, atol=1e-6)


# --- counting ---


@pytest.mark.parametrize(
    ("spec", "forwards", "backwards"),
    [("fgsm(eps=0.1)", 1, 1), ("bim(eps=0.1)", 10, 10), ("pgd(eps=0.1)", 10, 10), ("pgd(eps=0.1,steps=7)", 7, 7),
     ("mim(eps=0.1)", 10, 10), ("jsma(gamma=0.04,eps=0.01)", 2, 2), ("pgd@foolbox(eps=0.1)", 10, 10)],
)  # fmt: skip
def test_forwards_and_backwards_are_counted_per_image(
    spec: str, forwards: int, backwards: int, ensemble: Ensemble, digits: Digits
) -> None:
    named = parse_attack(spec)
    with prepared(ensemble):
        attacked = AttackedModel(ensemble)
        named.backend()(attacked, digits[0][:6].clone(), digits[1][:6], named.attack)
    assert (attacked.forwards, attacked.backwards) == (6 * forwards, 6 * backwards)


def test_a_tensor_that_is_used_twice_counts_twice(ensemble: Ensemble, digits: Digits) -> None:
    attacked = AttackedModel(ensemble)
    point = digits[0][:3].clone().requires_grad_()
    (attacked(point).sum() + attacked(point).sum()).backward()
    assert (attacked.forwards, attacked.backwards) == (6, 6)


def test_images_that_want_a_gradient_may_be_looked_at_without_one(ensemble: Ensemble, digits: Digits) -> None:
    attacked = AttackedModel(ensemble)
    with torch.no_grad():
        attacked(digits[0][:3].clone().requires_grad_())
    assert (attacked.forwards, attacked.backwards) == (3, 0)


# --- dead gradients ---


class _Rounded(nn.Module):
    """Rounds the first image's pixels, which kills their gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(torch.cat([images[:1].round(), images[1:]]))


def test_a_gradient_that_vanishes_is_seen_on_the_images_where_it_does(ensemble: Ensemble, digits: Digits) -> None:
    for model, expected in ((ensemble, [False] * 4), (_Rounded(ensemble), [True, False, False, False])):
        named = parse_attack("fgsm(eps=0.1)")
        attacked = AttackedModel(model)
        named.backend()(attacked, digits[0][:4].clone(), digits[1][:4], named.attack)
        assert attacked.dead_gradient is not None
        assert attacked.dead_gradient.tolist() == expected


def test_a_gradient_that_is_not_finite_is_dead(ensemble: Ensemble, digits: Digits) -> None:
    attacked = AttackedModel(ensemble)
    point = digits[0][:2].clone().requires_grad_()
    (attacked(point).sum(-1) * torch.tensor([float("nan"), 1.0])).sum().backward()
    assert attacked.dead_gradient is not None and attacked.dead_gradient.tolist() == [True, False]


# --- random numbers ---


def test_random_numbers_of_images_are_the_images_own() -> None:
    model = AttackedModel(nn.Identity(), draws=[("a", 0), ("a", 1), ("a", 2)])
    whole = model.uniform(torch.arange(3), (2, 2), 0)
    assert torch.equal(model.uniform(torch.tensor([2]), (2, 2), 0)[0], whole[2])
    assert not torch.equal(model.uniform(torch.tensor([2]), (2, 2), 1)[0], whole[2])
    assert float(whole.min()) >= 0 and float(whole.max()) < 1
