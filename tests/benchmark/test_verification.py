"""What an attack returns is checked image by image: planted defects are found, counted and mended."""

from __future__ import annotations

import pytest
import torch
from benchmark.verification import norms, verify
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor


@pytest.fixture
def clean() -> Tensor:
    return torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1


def test_sound_images_pass_untouched(clean: Tensor) -> None:
    adversarial = clean + 0.05
    checked = verify(clean, adversarial, 0.05)
    assert torch.equal(checked.images, adversarial)
    assert checked.moved.all()
    assert not (checked.not_finite | checked.out_of_box | checked.out_of_ball).any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_image_that_is_not_finite_becomes_the_clean_one(clean: Tensor, value: float) -> None:
    adversarial = clean + 0.01
    adversarial[2, 0, 1, 1] = value
    checked = verify(clean, adversarial, 0.05)
    assert checked.not_finite.tolist() == [False, False, True, False, False, False]
    assert torch.equal(checked.images[2], clean[2]) and not checked.moved[2]
    assert checked.moved.sum() == 5


@pytest.mark.parametrize(("value", "clipped"), [(-0.2, 0.0), (1.2, 1.0)])
def test_an_image_outside_the_box_is_clipped(clean: Tensor, value: float, clipped: float) -> None:
    adversarial = clean.clone()
    adversarial[3, 0, 0, 0] = value
    checked = verify(clean, adversarial, None)
    assert checked.out_of_box.nonzero().flatten().tolist() == [3]
    assert checked.images[3, 0, 0, 0] == clipped
    assert not checked.out_of_ball.any()


def test_an_image_outside_the_ball_is_projected_onto_it_and_others_are_not(clean: Tensor) -> None:
    adversarial = clean + 0.05
    adversarial[1] = clean[1] + 0.09
    checked = verify(clean, adversarial, 0.05)
    assert checked.out_of_ball.nonzero().flatten().tolist() == [1]
    assert torch.allclose(checked.images[1], clean[1] + 0.05)
    assert torch.equal(checked.images[0], adversarial[0])


def test_an_attack_without_a_ball_may_go_anywhere_in_the_box(clean: Tensor) -> None:
    checked = verify(clean, 1 - clean, None)
    assert torch.equal(checked.images, 1 - clean) and not checked.out_of_ball.any()


def test_rounding_is_no_violation(clean: Tensor) -> None:
    assert not verify(clean, clean + 0.05 + 5e-7, 0.05).out_of_ball.any()
    adversarial = clean.clone()
    adversarial[0, 0, 0, 0] = -5e-7
    checked = verify(clean, adversarial, None)
    assert not checked.out_of_box.any() and checked.images.min() == 0


def test_an_unmoved_image_is_seen(clean: Tensor) -> None:
    adversarial = clean.clone()
    adversarial[4, 0, 2, 2] += 1e-4
    assert verify(clean, adversarial, 0.1).moved.tolist() == [False] * 4 + [True, False]


def test_another_shape_is_refused(clean: Tensor) -> None:
    with pytest.raises(ValueError, match=r"shape \(5, 1, 4, 4\) for images of \(6, 1, 4, 4\)"):
        verify(clean, clean[:5], 0.1)


def test_what_is_judged_is_float32_without_history(clean: Tensor) -> None:
    adversarial = (clean.double() + 0.01).requires_grad_()
    checked = verify(clean, adversarial, 0.1)
    assert checked.images.dtype == torch.float32 and not checked.images.requires_grad


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.001, 1), st.floats(0, 3))
def test_whatever_comes_in_what_goes_out_is_legal(seed: int, budget: float, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    clean = torch.rand(3, 1, 3, 3, generator=generator)
    adversarial = clean + size * torch.randn(3, 1, 3, 3, generator=generator)
    adversarial[0, 0, 0, 0] = float("nan")
    checked = verify(clean, adversarial, budget)
    assert checked.images.isfinite().all() and checked.images.min() >= 0 and checked.images.max() <= 1
    assert (checked.images - clean).abs().max() <= budget + 2e-6
    again = verify(clean, checked.images, budget)
    assert torch.equal(again.images, checked.images) and not (again.out_of_ball | again.out_of_box).any()


def test_norms_are_those_of_the_difference(clean: Tensor) -> None:
    adversarial = clean.clone()
    adversarial[0, 0, 0, 0] += 0.03
    adversarial[0, 0, 1, 0] -= 0.04
    found = {name: float(values[0]) for name, values in norms(clean, adversarial).items()}
    assert found == pytest.approx({"linf": 0.04, "l2": 0.05, "l1": 0.07, "l0": 2}, abs=1e-6)
    assert all(values[1:].abs().max() == 0 for values in norms(clean, adversarial).values())
