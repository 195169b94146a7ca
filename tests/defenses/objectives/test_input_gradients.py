"""GAL and TRS compute what they say, cannot be spoiled by a vanished gradient, and shape the gradients they train."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from defenses.catalogue import parse_defense
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble, build_ensemble
from defenses.objectives import Place, total
from defenses.objectives.adversarial_training import AdversarialTraining
from defenses.objectives.gal import GAL
from defenses.objectives.input_gradients import gradient_cosines, loss_gradients, steepest
from defenses.objectives.trs import TRS

Batch = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Linear(nn.Module):
    """Logits W·x + b of flattened images."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(scale * torch.randn(5, 12, generator=generator))
        self.bias = nn.Parameter(torch.randn(5, generator=generator))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1) @ self.weight.T + self.bias


class Smooth(Linear):
    """The same behind a softplus, so that the gradient of the gradient is not constant."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(nn.functional.softplus(3 * inputs))


@pytest.fixture
def linear() -> Ensemble:
    ensemble = Ensemble([Linear(seed) for seed in range(3)]).double()
    ensemble.mean, ensemble.std = torch.tensor(0.4), torch.tensor(0.25)
    return ensemble


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(6, 3, 2, 2, generator=generator), torch.randint(5, (6,), generator=generator)


def _by_hand(ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Cross-entropies (K, N) and their gradients Wᵀ(p − e_y) / std (K, N, D) of linear members, in numpy."""
    pixels = images.detach().numpy().reshape(len(images), -1)
    rows = np.arange(len(labels))
    losses, gradients = [], []
    for member in ensemble.members:
        weight, bias = member.weight.detach().numpy(), member.bias.detach().numpy()
        scores = np.exp((pixels - 0.4) / 0.25 @ weight.T + bias)
        probability = scores / scores.sum(1, keepdims=True)
        losses.append(-np.log(probability[rows, labels]))
        gradients.append((probability - np.eye(5)[labels]) @ weight / 0.25)
    return np.array(losses), np.array(gradients)


def _cosines(gradients: np.ndarray) -> np.ndarray:
    unit = gradients / np.linalg.norm(gradients, axis=-1, keepdims=True)
    return np.array([(unit[i] * unit[j]).sum(-1) for i, j in combinations(range(len(unit)), 2)])


# --- the losses ---


def test_the_gradient_of_a_member_does_not_pass_through_the_others(linear: Ensemble) -> None:
    passed: list[int] = []
    for number, member in enumerate(linear.members):
        member.register_full_backward_hook(lambda module, into, out, number=number: passed.append(number))
    loss_gradients(linear, torch.rand(4, 3, 2, 2), torch.arange(4))
    assert passed == [0, 1, 2]


def test_gal_is_the_mean_cross_entropy_and_half_the_log_sum_exp_of_the_cosines(linear: Ensemble, batch: Batch) -> None:
    logits, terms = GAL().forward(linear, *batch)
    losses, gradients = _by_hand(linear, *batch)
    coherence = np.log(np.exp(_cosines(gradients)).sum(0))
    np.testing.assert_allclose(terms["ce"].detach(), losses.mean(0))
    np.testing.assert_allclose(terms["coherence"].detach(), 0.5 * coherence)
    assert logits.shape == (3, 6, 5)
    expected = losses.mean(0).mean() + 0.5 * coherence.mean()
    assert total(terms).item() == pytest.approx(expected)


def test_trs_is_ece_and_the_weighted_cosines_and_slopes(linear: Ensemble, batch: Batch) -> None:
    images, labels = batch
    defense = TRS(lambda_a=3, lambda_b=0.7, progress=0.5)
    assert defense.delta == pytest.approx(0.02)
    _, terms = defense.forward(linear, images, labels)
    losses, gradients = _by_hand(linear, images, labels)
    np.testing.assert_allclose(terms["ece"].detach(), losses.sum(0))
    np.testing.assert_allclose(terms["similarity"].detach(), 3 * np.abs(_cosines(gradients)).mean(0))
    moved = images.clone()
    moved[1::2] = steepest(linear, images[1::2], labels[1::2], 0.02, 6)
    _, there = _by_hand(linear, moved, labels)
    np.testing.assert_allclose(terms["slope"].detach(), 0.7 * 2 * (there**2).sum(-1).mean(0))


def test_gradients_are_those_of_each_image_per_pixel(linear: Ensemble, batch: Batch) -> None:
    logits, gradients = loss_gradients(linear, *batch)
    np.testing.assert_allclose(gradients.detach(), _by_hand(linear, *batch)[1])
    torch.testing.assert_close(logits, linear.member_logits(batch[0]))


@pytest.mark.parametrize("defense", [GAL(), TRS(lambda_b=0.1, delta_first=0, delta_last=0)], ids=["gal", "trs"])
def test_the_loss_may_be_differentiated_through_the_gradients(defense: GAL | TRS, batch: Batch) -> None:
    ensemble = Ensemble([Smooth(seed, 0.3) for seed in range(2)]).double()
    weights = [member.weight for member in ensemble.members]

    def loss(*values: Tensor) -> Tensor:
        swapped = {f"members.{index}.weight": value for index, value in enumerate(values)}
        return torch.func.functional_call(
            _Loss(defense, ensemble, batch), {f"ensemble.{k}": v for k, v in swapped.items()}
        )

    assert torch.autograd.gradcheck(loss, [weight.detach().clone().requires_grad_() for weight in weights])


class _Loss(nn.Module):
    def __init__(self, defense: GAL | TRS, ensemble: Ensemble, batch: Batch) -> None:
        super().__init__()
        self.ensemble, self.defense, self.data = ensemble, defense, batch

    def forward(self) -> Tensor:
        return total(self.defense.forward(self.ensemble, *self.data)[1])


# --- gradients that vanish ---


def test_cosines_do_not_depend_on_how_small_a_gradient_is() -> None:
    gradients = torch.randn(3, 4, 12, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    expected = gradient_cosines(gradients)
    torch.testing.assert_close(expected, torch.from_numpy(_cosines(gradients.numpy())))
    shrunk = gradients * torch.tensor([1.0, 1e-12, 1e-25])[:, None, None].float()
    torch.testing.assert_close(gradient_cosines(shrunk), expected)


def test_a_gradient_of_zero_has_cosine_zero_and_spoils_no_other() -> None:
    gradients = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    gradients[0, 1] = 0
    gradients.requires_grad_()
    cosines = gradient_cosines(gradients)
    assert cosines[0, 1] == 0 and (cosines[0, [0, 2]] != 0).all()
    (back,) = torch.autograd.grad(cosines.sum(), gradients)
    assert torch.isfinite(back).all()


@pytest.mark.parametrize("defense", [GAL(), TRS()], ids=["gal", "trs"])
def test_members_that_do_not_look_at_the_image_are_trained_all_the_same(defense: GAL | TRS, batch: Batch) -> None:
    ensemble = Ensemble([Linear(0, scale=0.0), Linear(1)]).double()
    loss = total(defense.forward(ensemble, *batch)[1])
    loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in ensemble.parameters())


def test_a_member_that_is_sure_still_has_a_direction() -> None:
    member = Linear(0)
    member.bias.data[2] = 80.0  # softmax is 1 to the last bit, in float32 and in float64
    ensemble = Ensemble([member, Linear(1)]).float()
    images = torch.rand(4, 3, 2, 2, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    _, gradients = loss_gradients(ensemble, images, torch.full((4,), 2))
    assert (gradients[0] != 0).all()
    others = [0, 1, 3, 4]
    weight, bias = member.weight.detach().double(), member.bias.detach().double()
    logits = images.flatten(1).double() @ weight.T + bias
    direction = torch.softmax(logits[:, others], -1) @ (weight[others] - weight[2])
    cosine = torch.cosine_similarity(direction, gradients[0].detach().double() * 1e30)
    torch.testing.assert_close(cosine, torch.ones(4), atol=1e-5, rtol=0)


# --- the images ---


def test_steepest_climbs_within_the_ball_and_the_box(batch: Batch) -> None:
    ensemble = Ensemble([Smooth(seed, 0.3) for seed in range(3)]).double()
    images, labels = batch
    images[:, 0] = 0.0
    images[:, 1] = 1.0
    moved = steepest(ensemble, images, labels, 0.05, 6)
    assert (moved - images).abs().max() <= 0.05 + 1e-12 and (moved != images).any()
    assert moved.min() >= 0 and moved.max() <= 1
    before, after = (loss_gradients(ensemble, x, labels)[1].square().sum() for x in (images, moved))
    assert after > before


def test_gal_puts_noise_on_every_other_image_and_keeps_them_images(linear: Ensemble) -> None:
    images = torch.full((400, 3, 2, 2), 0.5)
    images[:, 0] = 1.0
    noisy, _ = GAL().batch(linear, images, torch.zeros(400).long(), torch.Generator().manual_seed(0))
    assert torch.equal(noisy[1::2], images[1::2])
    assert noisy.max() <= 1 and noisy.min() >= 0
    noise = (noisy - images)[::2, 1:]
    assert noise.std().item() == pytest.approx(0.045, rel=0.05) and noise.mean().abs() < 0.005


# --- over training ---


def test_the_ball_of_trs_grows_linearly_from_first_to_last_epoch(linear: Ensemble) -> None:
    for defense in (TRS(), AdversarialTraining("fgsm", inner=TRS())):
        places = [defense.at(Place(epoch, 5), linear, torch.Generator()) for epoch in range(5)]
        deltas = [getattr(place, "inner", place).delta for place in places]
        assert deltas == pytest.approx([0.01, 0.015, 0.02, 0.025, 0.03])
    assert TRS().at(Place(0, 1), linear, torch.Generator()).delta == pytest.approx(0.01)


@pytest.mark.parametrize("spec", ["gal", "trs", "advt-pgd+trs", "advt-fgsm+gal"])
def test_a_step_changes_every_weight_and_moves_the_statistics_of_batch_norm_once(spec: str) -> None:
    torch.set_default_dtype(torch.float32)
    ensemble = build_ensemble("mini-resnet(width=2,leak=0.1)", 2, (1, 8, 8), 10).train()
    before = [parameter.detach().clone() for parameter in ensemble.parameters()]
    optimiser = torch.optim.SGD(ensemble.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0)
    result = parse_defense(spec).defense.step(
        ensemble, optimiser, torch.rand(8, 1, 8, 8, generator=generator), torch.arange(8), generator
    )
    rows = 16 if "advt" in spec else 8
    assert {name: len(values) for name, values in result.terms.items()} == dict.fromkeys(result.terms, rows)
    assert len(result.terms) == (3 if "trs" in spec else 2) and result.logits.shape == (2, rows, 10)
    assert all(not torch.equal(a, b) for a, b in zip(before, ensemble.parameters(), strict=True))
    assert all(b == 1 for name, b in ensemble.named_buffers() if name.endswith("num_batches_tracked"))


# --- what is refused ---


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gal(weight=-1)", "weight is -1"),
        ("gal(noise=-0.1)", "noise is -0.1"),
        ("trs(lambda_a=-1)", "lambda_a is -1"),
        ("trs(lambda_b=-1)", "lambda_b is -1"),
        ("trs(delta_first=0.05)", "from 0.05 to 0.03"),
        ("trs(steps=0)", "steps is 0"),
        ("trs(progress=1)", "no parameter 'progress'"),
        ("gal+trs", "joins two objectives"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_by_name(spec: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_defense(spec)


@pytest.mark.parametrize("spec", ["gal", "trs", "advt-pgd+trs"])
def test_one_member_has_nobody_to_differ_from(spec: str) -> None:
    parse_defense(spec).defense.check(2, 10)
    with pytest.raises(BadInput, match="at least 2 members"):
        parse_defense(spec).defense.check(1, 10)


def test_what_holds_for_one_epoch_is_no_part_of_the_text() -> None:
    named = parse_defense("trs(lambda_a=2)")
    assert named.text == "trs(lambda_a=2)" and named.defense == replace(TRS(lambda_a=2), progress=0.0)
