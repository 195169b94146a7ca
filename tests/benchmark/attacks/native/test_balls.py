"""Projections, steps and starts in three balls, each checked against a solver or a distribution of its own."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from torch import Tensor

from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.bounds import Bound
from benchmark.attacks.native.balls import FARTHEST, project, random_start, uphill

Round = Literal["l2", "l1"]
ROUND: tuple[Round, ...] = ("l2", "l1")
ORDER = {"l2": 2, "l1": 1}


def _pair(seed: int, size: float, scalars: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    clean = torch.rand(1, 1, 1, scalars, generator=generator)
    return clean, clean + size * torch.randn(clean.shape, generator=generator)


@pytest.mark.parametrize("norm", ROUND)
@pytest.mark.parametrize("seed", range(6))
def test_the_projection_is_the_nearest_point_that_a_solver_finds(norm: Round, seed: int) -> None:
    """In L1 the perturbation is split into what it adds and what it takes away, so that its size is smooth."""
    radius = 0.4
    clean, x = _pair(seed, 0.8)
    c, wanted = clean.flatten().double().numpy(), (x - clean).flatten().double().numpy()
    split = np.hstack([np.eye(len(c)), -np.eye(len(c))]) if norm == "l1" else np.eye(len(c))
    if norm == "l1":
        room, inside = [*((0, 1 - v) for v in c), *((0, v) for v in c)], lambda parts: radius - parts.sum()
    else:
        room, inside = [(-v, 1 - v) for v in c], lambda parts: radius**2 - parts @ parts
    solved = optimize.minimize(
        lambda parts: ((split @ parts - wanted) ** 2).sum(),
        np.full(split.shape[1], 0.01),
        bounds=room,
        constraints={"type": "ineq", "fun": inside},
        options={"ftol": 1e-10, "maxiter": 500},
    )
    assert solved.success
    nearest = split @ solved.x
    found = (project(x, clean, Bound(norm, radius)) - clean).flatten().numpy()
    np.testing.assert_allclose(found, nearest, atol=2e-4)


@pytest.mark.parametrize("norm", ROUND)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), radius=st.floats(0.05, 4), size=st.floats(0, 3))
def test_a_projected_image_is_in_ball_and_box_and_stays_where_it_is(
    norm: Round, seed: int, radius: float, size: float
) -> None:
    clean, x = _pair(seed, size, 40)
    bound = Bound(norm, radius)
    found = project(x, clean, bound)
    assert found.min() >= 0 and found.max() <= 1
    assert np.linalg.norm((found - clean).double().flatten().numpy(), ORDER[norm]) <= radius * (1 + 1e-5) + 1e-6
    torch.testing.assert_close(project(found, clean, bound), found, atol=1e-5, rtol=0)
    inside = clean + (x - clean) * 1e-3
    if np.linalg.norm((inside - clean).flatten().numpy(), ORDER[norm]) < radius:
        torch.testing.assert_close(project(inside, clean, bound), inside.clamp(0, 1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("norm", ROUND)
def test_a_projection_uses_the_whole_radius_where_the_box_cuts_scalars_off(norm: Round) -> None:
    clean = torch.tensor([0.9, 0.5, 0.5, 0.5]).reshape(1, 1, 2, 2)
    moved = clean + torch.tensor([1.0, 0.3, -0.3, 0.3]).reshape(1, 1, 2, 2)
    found = project(moved, clean, Bound(norm, 0.45)) - clean
    assert np.linalg.norm(found.flatten().numpy(), ORDER[norm]) == pytest.approx(0.45, abs=1e-4)


def test_an_l1_step_is_the_best_one_that_a_linear_programme_finds() -> None:
    generator = torch.Generator().manual_seed(0)
    x, gradient = (torch.rand(1, 1, 4, 5, generator=generator) for _ in range(2))
    gradient = gradient - 0.5
    x[0, 0, 0] = torch.tensor([0.0, 1.0, 0.02, 0.97, 0.5])
    size = 0.73
    step = uphill(gradient, x, Bound("l1", 3), size).flatten().double().numpy()
    g, start = gradient.flatten().double().numpy(), x.flatten().double().numpy()
    count = len(g)
    best = optimize.linprog(
        -np.concatenate([g, -g]),
        A_ub=np.ones((1, 2 * count)),
        b_ub=[size],
        bounds=[*((0, min(FARTHEST, 1 - value)) for value in start), *((0, min(FARTHEST, value)) for value in start)],
    )
    assert g @ step == pytest.approx(-best.fun, abs=1e-6)
    assert np.abs(step).sum() == pytest.approx(size, abs=1e-6)
    assert (start + step).min() >= -1e-7 and (start + step).max() <= 1 + 1e-7


def test_an_l2_step_goes_along_the_gradient_however_small_it_is() -> None:
    gradient = torch.tensor([[3e-30, -4e-30]]).reshape(1, 1, 1, 2)
    step = uphill(gradient, torch.zeros_like(gradient), Bound("l2", 1), 0.5)
    torch.testing.assert_close(step.flatten(), torch.tensor([0.3, -0.4]))


@pytest.mark.parametrize("norm", ROUND)
def test_without_a_gradient_there_is_no_step(norm: Round) -> None:
    x = torch.full((2, 1, 2, 2), 0.5)
    assert (uphill(torch.zeros_like(x), x, Bound(norm, 1), 0.3) == 0).all()


@pytest.mark.parametrize("norm", ROUND)
def test_starts_are_uniform_in_the_ball(norm: Round) -> None:
    """In a ball of d dimensions the share within a fraction f of the radius is f to the power of d, all around."""
    scalars, radius = 4, 0.3
    images = torch.full((3000, 1, 2, 2), 0.5)
    model = AttackedModel(torch.nn.Identity(), draws=range(len(images)))
    found = random_start(model, images, torch.arange(len(images)), Bound(norm, radius), 0) - images
    sizes = np.linalg.norm(found.flatten(1).numpy(), ORDER[norm], axis=1) / radius
    assert stats.kstest(sizes**scalars, "uniform").pvalue > 0.001
    positive = (found.flatten(1) > 0).double().mean(0)
    assert ((positive - 0.5).abs() < 0.04).all()
    spread = found.flatten(1).double().std(0)
    assert spread.max() < 1.08 * spread.min()
