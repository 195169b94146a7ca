"""Our batch norm is PyTorch's, with the same numbers, and its second derivative is that of finite differences."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from defenses.catalogue import parse_defense
from defenses.members import batch_norm
from defenses.members.batch_norm import BatchNorm2d, fast_second_derivative
from defenses.members.ensemble import build_ensemble


def _pair(dtype: torch.dtype) -> tuple[nn.BatchNorm2d, nn.BatchNorm2d]:
    ours, theirs = BatchNorm2d(3, eps=1e-3, momentum=0.01), nn.BatchNorm2d(3, eps=1e-3, momentum=0.01)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(torch.randn(3, generator=torch.Generator().manual_seed(1)))
    theirs.load_state_dict(ours.state_dict())
    return ours.to(dtype), theirs.to(dtype)


def _images(dtype: torch.dtype = torch.float64) -> Tensor:
    found = torch.randn(4, 3, 5, 2, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return (2 * found + 1).contiguous(memory_format=torch.channels_last).requires_grad_()


def _penalty(norm: nn.Module, images: Tensor) -> list[Tensor]:
    """Gradients of a loss that contains input gradients, as GAL's and TRS's do."""
    with fast_second_derivative():
        outputs = norm(images)
    loss = (outputs.sin() * torch.arange(images.numel()).view_as(images) / 50).sum()
    (gradient,) = torch.autograd.grad(loss, images, create_graph=True)
    return list(torch.autograd.grad(gradient.pow(3).sum() + loss, [images, *norm.parameters()]))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("momentum", [0.01, None])
def test_output_first_gradient_and_running_averages_equal_those_of_pytorch(
    training: bool, track: bool, momentum: float | None
) -> None:
    images, found = _images(torch.float32), []
    for norm in _pair(torch.float32):
        norm.train(training).track_running_stats, norm.momentum = track, momentum
        with fast_second_derivative():
            output = norm(images)
        gradients = torch.autograd.grad(output.square().sum(), [images, *norm.parameters()])
        found.append([output, *gradients, norm.running_mean, norm.running_var, norm.num_batches_tracked])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("training", [True, False])
def test_a_penalty_on_input_gradients_has_the_gradients_that_pytorch_composes(training: bool) -> None:
    images = _images()
    ours, theirs = (_penalty(norm.train(training), images) for norm in _pair(torch.float64))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_both_derivatives_are_those_of_finite_differences() -> None:
    ours, _ = _pair(torch.float64)

    def normalised(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with fast_second_derivative():
            return torch.func.functional_call(ours, {"weight": weight, "bias": bias}, (images,))

    given = (_images(), *(parameter.detach().clone().requires_grad_() for parameter in ours.parameters()))
    assert torch.autograd.gradcheck(normalised, given)
    assert torch.autograd.gradgradcheck(normalised, given)


def test_a_third_derivative_is_refused_and_outside_the_context_computed_by_pytorch() -> None:
    ours, theirs = _pair(torch.float64)

    def third(norm: nn.Module, images: Tensor) -> Tensor:
        value = norm(images).pow(3).sum()
        for _ in range(3):
            (gradient,) = torch.autograd.grad(value, images, create_graph=True)
            value = gradient.pow(2).sum()
        return gradient

    with fast_second_derivative(), pytest.raises(RuntimeError, match="third derivative"):
        third(ours, _images())
    torch.testing.assert_close(third(ours, _images()), third(theirs, _images()))


def test_one_value_per_channel_is_refused_as_by_pytorch() -> None:
    with fast_second_derivative(), pytest.raises(ValueError, match="more than 1 value per channel"):
        BatchNorm2d(3)(torch.rand(1, 3, 1, 1))


def test_in_bfloat16_the_gradients_stay_near_those_of_float32() -> None:
    ours, _ = _pair(torch.float32)
    images = _images(torch.float32)
    near = _penalty(copy.deepcopy(ours), images.detach().bfloat16().requires_grad_())
    for one, other in zip(near, _penalty(ours, images), strict=True):
        assert (one.float() - other).norm() < 0.05 * other.norm()


@pytest.mark.parametrize("spec", ["gal", "trs"])
def test_gal_and_trs_use_the_fast_derivative(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(batch_norm._Gradient, "backward", lambda ctx, *up: used.append(1) or (None,) * 6)
    ensemble = build_ensemble("resnet(depth=8)", 2, (3, 8, 8), 10).train()
    images, labels = torch.rand(4, 3, 8, 8), torch.arange(4)
    optimiser, generator = torch.optim.SGD(ensemble.parameters(), 0.1), torch.Generator().manual_seed(0)
    parse_defense(spec).defense.step(ensemble, optimiser, images, labels, generator)
    assert used
