"""The optimisers do what the recipe says, by hand-computed steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from defenses.errors import BadInput
from defenses.members.ensemble import build_ensemble
from defenses.training.optimisation import new_optimiser
from defenses.training.recipes import fast

RECIPE = replace(fast("tiny"), optimiser="sgd", learning_rate=0.1, weight_decay=0.01)


def test_sgd_takes_nesterov_steps_with_decay_on_kernels_only() -> None:
    ensemble = build_ensemble("mini-resnet(width=2)", 1, (1, 8, 8), 10, seed=0)
    optimiser = new_optimiser(ensemble, RECIPE)
    expected, velocity = {}, {}
    for name, parameter in ensemble.named_parameters():
        expected[name] = parameter.detach().clone().double()
        velocity[name] = torch.zeros_like(expected[name])
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        for name, parameter in ensemble.named_parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            gradient = parameter.grad.double() + (0.01 * expected[name] if parameter.ndim == 4 else 0)
            velocity[name] = 0.9 * velocity[name] + gradient
            expected[name] = expected[name] - 0.1 * (gradient + 0.9 * velocity[name])
        optimiser.step()
    for name, parameter in ensemble.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), expected[name], rtol=1e-5, atol=1e-6)


def test_an_unknown_optimiser_is_refused() -> None:
    with pytest.raises(BadInput):
        replace(RECIPE, optimiser="lion")  # type: ignore[arg-type]
