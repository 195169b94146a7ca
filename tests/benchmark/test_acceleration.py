"""The fast copy is the same ensemble; where it cannot be, the ensemble itself is used."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmark.acceleration import accelerated
from defenses.ensemble import Ensemble, build_ensemble


def _used(network: str, shape: tuple[int, int, int]) -> tuple[Ensemble, Tensor]:
    """An ensemble whose batch norms have seen data and whose scales and shifts are no longer one and zero."""
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(8, *shape, generator=generator)
    ensemble = build_ensemble(network, 2, shape, 10, images.mean(0), seed=1)
    with torch.no_grad():
        for module in ensemble.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.5
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.uniform_(-0.5, 0.5, generator=generator)
        ensemble.train()
        ensemble(images)
    return ensemble.eval(), images


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        ("resnet20", (3, 16, 16)),
        ("resnet20", (1, 14, 14)),
        ("resnet20-dverge", (3, 16, 16)),
        ("mini-resnet", (1, 8, 8)),
    ],
)
def test_the_fast_copy_gives_the_same_answers_and_gradients(network: str, shape: tuple[int, int, int]) -> None:
    ensemble, images = _used(network, shape)
    weights = {name: value.clone() for name, value in ensemble.state_dict().items()}
    fast = accelerated(ensemble, images)
    assert fast is not ensemble, "it was made faster"
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fast.modules())
    others = torch.rand(8, *shape, generator=torch.Generator().manual_seed(4))
    outputs, gradients = [], []
    for model in (ensemble, fast):
        point = others.clone().requires_grad_()
        output = model(point)
        (gradient,) = torch.autograd.grad(output[:, 3].sum(), point)
        outputs.append(output.detach())
        gradients.append(gradient.flatten(1))
    assert torch.allclose(*outputs, atol=1e-4)
    assert (torch.cosine_similarity(*gradients, dim=1) > 0.9999).all()
    assert all(torch.equal(value, weights[name]) for name, value in ensemble.state_dict().items())


def test_filters_that_weight_decay_has_killed_are_dropped_without_changing_a_gradient() -> None:
    ensemble, images = _used("resnet20", (3, 16, 16))
    for member in ensemble.members:
        last = member.layers[2][2]  # type: ignore[index]
        with torch.no_grad():
            for weight in (last.conv1.weight, last.conv2.weight):
                weight[:32] *= 10 ** torch.linspace(-20, -40, 32)[:, None, None, None]
    fast = accelerated(ensemble, images)
    assert fast is not ensemble
    sizes = torch.cat([weight.detach().abs().flatten() for weight in fast.members.parameters()])  # type: ignore[union-attr]
    assert not ((sizes > 0) & (sizes < 1e-20)).any() and (sizes == 0).sum() > 2 * 32 * 64 * 9
    gradients = []
    for model in (ensemble, fast):
        point = images.clone().requires_grad_()
        gradients += torch.autograd.grad(model(point)[:, 3].sum(), point)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


def test_a_model_it_does_not_know_is_used_as_it_is() -> None:
    for model in (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        Ensemble([nn.Sequential(nn.Flatten(), nn.Linear(64, 10))]),
    ):
        assert accelerated(model, torch.rand(2, 1, 8, 8)) is model


def test_a_copy_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmark import acceleration

    ensemble, images = _used("mini-resnet", (1, 8, 8))

    def spoil(network: nn.Module) -> None:
        with torch.no_grad():
            network.fc.bias[0] += 0.01

    monkeypatch.setattr(acceleration, "_fold", spoil)
    assert accelerated(ensemble, images) is ensemble


def test_an_ensemble_whose_output_is_not_finite_is_used_as_it_is() -> None:
    ensemble, images = _used("mini-resnet", (1, 8, 8))
    with torch.no_grad():
        next(ensemble.parameters()).fill_(float("nan"))
    assert accelerated(ensemble, images) is ensemble
