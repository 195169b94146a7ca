"""Our batch norm is PyTorch's, with the same numbers, and its second derivative is that of finite differences."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from defenses.members.batch_norm import BatchNorm2d


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
    loss = (norm(images).sin() * torch.arange(images.numel()).view_as(images) / 50).sum()
    (gradient,) = torch.autograd.grad(loss, images, create_graph=True)
    return list(torch.autograd.grad(gradient.pow(3).sum() + loss, [images, *norm.parameters()]))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("track", [True, False])
def test_output_first_gradient_and_running_averages_equal_those_of_pytorch(training: bool, track: bool) -> None:
    images, found = _images(torch.float32), []
    for norm in _pair(torch.float32):
        norm.train(training).track_running_stats = track
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
        return torch.func.functional_call(ours, {"weight": weight, "bias": bias}, (images,))

    given = (_images(), *(parameter.detach().clone().requires_grad_() for parameter in ours.parameters()))
    assert torch.autograd.gradcheck(normalised, given)
    assert torch.autograd.gradgradcheck(normalised, given)


def test_in_bfloat16_the_gradients_stay_near_those_of_float32() -> None:
    ours, _ = _pair(torch.float32)
    images = _images(torch.float32)
    near = _penalty(copy.deepcopy(ours), images.detach().bfloat16().requires_grad_())
    for one, other in zip(near, _penalty(ours, images), strict=True):
        assert (one.float() - other).norm() < 0.05 * other.norm()


def test_in_training_it_can_be_traced_exported_and_transformed() -> None:
    ours, theirs = (norm.train() for norm in _pair(torch.float32))
    images = _images(torch.float32).detach()
    traced = torch.jit.trace(copy.deepcopy(ours), images)
    exported = torch.export.export(copy.deepcopy(ours), (images,)).module()

    gradients = []
    for norm in map(copy.deepcopy, (ours, theirs)):
        norm.track_running_stats = False  # torch.func refuses running averages, PyTorch's too
        gradients.append(torch.func.grad(lambda given, norm=norm: norm(given).sin().sum())(images))
    torch.testing.assert_close(gradients[0], gradients[1])
    for other in (traced, exported):
        torch.testing.assert_close(other(images), theirs(images))
