"""The model as attacks see it keeps its meaning, counts its own use, and is given back as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmark.attacks import parse_attack
from benchmark.models import AttackedModel, check_model, predict, prepared
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble

Digits = tuple[Tensor, Tensor]


class _Fixed(nn.Module):
    """Gives the same answer whatever the images; its one weight makes it a model."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.output = output

    def forward(self, images: Tensor) -> Tensor:
        return self.output[: len(images)] + 0 * self.weight


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


def test_the_shift_does_not_change_the_gradient(ensemble: Ensemble, digits: Digits) -> None:
    images, labels = digits[0][:10], digits[1][:10]
    gradients = []
    for model in (ensemble, AttackedModel(ensemble)):
        point = images.clone().requires_grad_()
        functional.cross_entropy(model(point), labels).backward()
        gradients.append(point.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-7)


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


# --- preparing ---


def test_prepared_freezes_and_gives_back_even_after_an_error(ensemble: Ensemble) -> None:
    ensemble.train()
    ensemble.members[0].eval()
    next(ensemble.parameters()).requires_grad_(False)
    modes = [module.training for module in ensemble.modules()]
    wanted = [parameter.requires_grad for parameter in ensemble.parameters()]
    with prepared(ensemble):
        assert not any(module.training for module in ensemble.modules())
        assert not any(parameter.requires_grad for parameter in ensemble.parameters())
    with pytest.raises(RuntimeError), prepared(ensemble):
        raise RuntimeError
    assert [module.training for module in ensemble.modules()] == modes
    assert [parameter.requires_grad for parameter in ensemble.parameters()] == wanted


def test_predictions_do_not_depend_on_the_batch_size(ensemble: Ensemble, digits: Digits) -> None:
    images = digits[0][:50]
    assert torch.equal(predict(ensemble, images, 7), predict(ensemble, images, 50))


# --- what is refused ---

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.1, 0.2, 3.0]])
IMAGES = torch.rand(2, 1, 4, 4)


def _check(model: nn.Module, labels: list[int]) -> int:
    return check_model(model, IMAGES, torch.tensor(labels))


def test_a_sound_model_is_accepted_and_its_classes_counted() -> None:
    assert _check(_Fixed(LOGITS), [0, 2]) == 3
    assert _check(_Fixed(LOGITS.log_softmax(-1)), [0, 2]) == 3


def test_probabilities_are_refused() -> None:
    with pytest.raises(BadInput, match=r"gives probabilities.*return logits"):
        _check(_Fixed(LOGITS.softmax(-1)), [0, 2])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_outputs_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(BadInput, match="not finite"):
        _check(_Fixed(torch.full((2, 3), value)), [0, 2])


@pytest.mark.parametrize("shape", [(2,), (1, 3), (2, 3, 1)])
def test_outputs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match=r"it must give logits of shape \(N, classes\)"):
        _check(_Fixed(torch.randn(shape)), [0, 2])


def test_a_model_that_is_not_deterministic_is_refused() -> None:
    class Noisy(_Fixed):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) + torch.rand(2, 3)

    with pytest.raises(BadInput, match="two different outputs"):
        _check(Noisy(LOGITS), [0, 2])


@pytest.mark.parametrize(("labels", "wrong"), [([0, 3], 3), ([-1, 2], -1)])
def test_labels_out_of_range_are_refused(labels: list[int], wrong: int) -> None:
    with pytest.raises(BadInput, match=f"label {wrong} is out of range; the model has classes 0 to 2"):
        _check(_Fixed(LOGITS), labels)


def test_full_precision_whatever_the_user_had_chosen_and_the_users_choice_afterwards() -> None:
    model, before = nn.Linear(2, 2), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with prepared(model):
            assert {torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision} == {"ieee"}
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
