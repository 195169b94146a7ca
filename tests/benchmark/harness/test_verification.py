"""What an attack returns is checked image by image: planted defects are found, counted and mended."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from benchmark.attacks.bounds import NORMS, Bound, Norm
from benchmark.harness.verification import norms, outside, project, verify


@pytest.fixture
def clean() -> Tensor:
    return torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1


def test_sound_images_pass_untouched(clean: Tensor) -> None:
    adversarial = clean + 0.05
    checked = verify(clean, adversarial, Bound("linf", 0.05))
    assert torch.equal(checked.images, adversarial)
    assert checked.moved.all()
    assert not (checked.not_finite | checked.out_of_box | checked.out_of_ball).any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_image_that_is_not_finite_becomes_the_clean_one(clean: Tensor, value: float) -> None:
    adversarial = clean + 0.01
    adversarial[2, 0, 1, 1] = value
    checked = verify(clean, adversarial, Bound("linf", 0.05))
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
    checked = verify(clean, adversarial, Bound("linf", 0.05))
    assert checked.out_of_ball.nonzero().flatten().tolist() == [1]
    assert torch.allclose(checked.images[1], clean[1] + 0.05)
    assert torch.equal(checked.images[0], adversarial[0])


def test_an_attack_without_a_ball_may_go_anywhere_in_the_box(clean: Tensor) -> None:
    checked = verify(clean, 1 - clean, None)
    assert torch.equal(checked.images, 1 - clean) and not checked.out_of_ball.any()


def test_rounding_is_no_violation(clean: Tensor) -> None:
    assert not verify(clean, clean + 0.05 + 5e-7, Bound("linf", 0.05)).out_of_ball.any()
    adversarial = clean.clone()
    adversarial[0, 0, 0, 0] = -5e-7
    checked = verify(clean, adversarial, None)
    assert not checked.out_of_box.any() and checked.images.min() == 0


def test_an_unmoved_image_is_seen(clean: Tensor) -> None:
    adversarial = clean.clone()
    adversarial[4, 0, 2, 2] += 1e-4
    assert verify(clean, adversarial, Bound("linf", 0.1)).moved.tolist() == [False] * 4 + [True, False]


def test_another_shape_is_refused(clean: Tensor) -> None:
    with pytest.raises(ValueError, match=r"shape \(5, 1, 4, 4\) for images of shape \(6, 1, 4, 4\)"):
        verify(clean, clean[:5], Bound("linf", 0.1))


def test_what_is_judged_is_float32_without_history(clean: Tensor) -> None:
    adversarial = (clean.double() + 0.01).requires_grad_()
    checked = verify(clean, adversarial, Bound("linf", 0.1))
    assert checked.images.dtype == torch.float32 and not checked.images.requires_grad


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.001, 1), st.floats(0, 3))
def test_whatever_comes_in_what_goes_out_is_legal(seed: int, radius: float, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    clean = torch.rand(3, 1, 3, 3, generator=generator)
    adversarial = clean + size * torch.randn(3, 1, 3, 3, generator=generator)
    adversarial[0, 0, 0, 0] = float("nan")
    bound = Bound("linf", radius)
    checked = verify(clean, adversarial, bound)
    assert checked.images.isfinite().all() and checked.images.min() >= 0 and checked.images.max() <= 1
    assert (checked.images - clean).abs().max() <= radius + 2e-6
    again = verify(clean, checked.images, bound)
    assert torch.equal(again.images, checked.images) and not (again.out_of_ball | again.out_of_box).any()


def test_norms_are_those_of_the_difference(clean: Tensor) -> None:
    adversarial = clean.clone()
    adversarial[0, 0, 0, 0] += 0.03
    adversarial[0, 0, 1, 0] -= 0.04
    found = {name: float(values[0]) for name, values in norms(clean, adversarial).items()}
    assert found == pytest.approx({"linf": 0.04, "l2": 0.05, "l1": 0.07, "l0": 2}, abs=1e-6)
    assert all(values[1:].abs().max() == 0 for values in norms(clean, adversarial).values())


# --- other balls: every size below is worked out again by numpy in float64 ---

Floats = NDArray[np.float64]
ROUND: tuple[Norm, ...] = ("l2", "l1", "l0")
ABOUT_ONE_SCALAR = 2e-7
"""What float32 may round a scalar of an image by, here and there along the way."""
NO_CHANGE = 1.1e-6
"""A scalar that moved by no more than the tolerance of the box does not count as changed."""


def _rows(tensor: Tensor) -> Floats:
    return tensor.numpy().astype(np.float64).reshape(len(tensor), -1)


def _sizes(clean: Tensor, images: Tensor, norm: Norm) -> Floats:
    difference = _rows(images) - _rows(clean)
    if norm == "l0":
        return (np.abs(difference) > NO_CHANGE).sum(1).astype(np.float64)
    return np.linalg.norm(difference, {"linf": np.inf, "l2": 2, "l1": 1}[norm], axis=1)


def _nearest_in_l1(difference: Floats, radius: float) -> Floats:
    """The nearest point of the L1 ball by bisection: the threshold at which the sizes that are left sum to radius."""
    low, high = 0.0, float(np.abs(difference).max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(np.abs(difference) - middle, 0).sum() > radius else (low, middle)
    return np.sign(difference) * np.maximum(np.abs(difference) - high, 0)


def _nearest(difference: Floats, norm: Norm, radius: float) -> Floats:
    """The point of the ball that is nearest to a difference which lies outside."""
    if norm == "l2":
        return difference * radius / np.linalg.norm(difference)
    if norm == "l1":
        return _nearest_in_l1(difference, radius)
    found = np.zeros_like(difference)
    kept = np.argsort(-np.abs(difference))[: int(radius)]
    found[kept] = difference[kept]
    return found


def _moved(clean: Tensor, norm: Norm, size: float, seed: int = 1) -> Tensor:
    """Images whose perturbation has the size in the norm, in float64; it is rounded once, when it becomes float32."""
    generator = np.random.default_rng(seed)
    difference = generator.uniform(0.2, 1, (len(clean), clean[0].numel()))
    difference *= generator.choice([-1, 1], difference.shape)
    if norm == "l0":
        order = generator.permuted(np.tile(np.arange(difference.shape[1]), (len(clean), 1)), axis=1)
        difference = np.where(order < size, 0.05 * difference, 0)
    else:
        difference *= size / np.linalg.norm(difference, {"l2": 2, "l1": 1}[norm], axis=1, keepdims=True)
    images = (_rows(clean) + difference).reshape(clean.shape)
    assert images.min() >= 0 and images.max() <= 1
    return torch.from_numpy(images.astype(np.float32))


@pytest.fixture
def colour() -> Tensor:
    return torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(3)) * 0.6 + 0.2


RADII: dict[Norm, float] = {"l2": 0.8, "l1": 6.0, "l0": 20}


@pytest.mark.parametrize("norm", ROUND)
def test_an_image_inside_a_ball_is_left_untouched(norm: Norm, colour: Tensor) -> None:
    adversarial = _moved(colour, norm, 0.9 * RADII[norm])
    checked = verify(colour, adversarial, Bound(norm, RADII[norm]))
    assert torch.equal(checked.images, adversarial) and checked.moved.all()
    assert not (checked.not_finite | checked.out_of_box | checked.out_of_ball).any()


@pytest.mark.parametrize("norm", ROUND)
def test_images_outside_a_ball_are_counted_and_projected_to_the_nearest_point_inside(
    norm: Norm, colour: Tensor
) -> None:
    radius = RADII[norm]
    adversarial = _moved(colour, norm, 0.9 * radius)
    far = [1, 4]
    adversarial[far] = _moved(colour, norm, 1.5 * radius, seed=2)[far]
    checked = verify(colour, adversarial, Bound(norm, radius))
    assert checked.out_of_ball.nonzero().flatten().tolist() == far
    assert not (checked.not_finite | checked.out_of_box).any() and checked.moved.all()
    near = [0, 2, 3]
    assert torch.equal(checked.images[near], adversarial[near])
    sizes = _sizes(colour, checked.images, norm)[far]
    np.testing.assert_allclose(sizes, radius, rtol=1e-5, err_msg="on the sphere, not somewhere inside")
    for row in far:
        clean = _rows(colour)[row]
        wanted = _nearest(_rows(adversarial)[row] - clean, norm, radius)
        np.testing.assert_allclose(_rows(checked.images)[row] - clean, wanted, atol=ABOUT_ONE_SCALAR)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.05, 5), st.integers(1, 40))
def test_projection_to_an_l1_ball_is_that_of_a_bisection(seed: int, radius: float, scalars: int) -> None:
    generator = np.random.default_rng(seed)
    difference = generator.laplace(0, 0.2, (3, scalars)).round(2).clip(-0.5, 0.5)  # rounded: some are equal, some 0
    clean = torch.full((3, 1, 1, scalars), 0.5)
    images = clean + torch.from_numpy(difference.astype(np.float32)).reshape(clean.shape)
    bound = Bound("l1", radius)
    found = _rows(project(clean, images, bound)) - 0.5
    exact = _rows(images) - 0.5
    for row in range(3):
        inside = np.abs(exact[row]).sum() <= radius
        wanted = exact[row] if inside else _nearest_in_l1(exact[row], radius)
        np.testing.assert_allclose(found[row], wanted, atol=ABOUT_ONE_SCALAR)
        distance = np.linalg.norm(found[row] - exact[row])
        for _ in range(20):  # no other point of the ball is nearer
            other = generator.dirichlet(np.ones(scalars)) * radius * generator.choice([-1, 1], scalars)
            assert np.linalg.norm(other - exact[row]) >= distance - 1e-5


def test_of_an_l0_ball_the_largest_changes_are_kept_and_the_others_taken_back() -> None:
    clean = torch.full((1, 1, 2, 3), 0.5)
    change = torch.tensor([0.1, -0.4, 0.3, 0.0, -0.2, 0.05]).reshape(clean.shape)
    checked = verify(clean, clean + change, Bound("l0", 3))
    assert checked.out_of_ball.all()
    assert checked.images.flatten().tolist() == pytest.approx([0.5, 0.1, 0.8, 0.5, 0.3, 0.5], abs=1e-6)
    assert (checked.images == clean).sum() == 3, "exactly the clean pixels"
    assert not verify(clean, clean + change, Bound("l0", 5)).out_of_ball.any()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(ROUND),
    st.sampled_from([(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 96, 96)]),
    st.floats(0.01, 0.15),
    st.integers(0, 2**31),
)
def test_rounding_does_not_flag_an_image_on_the_sphere(
    norm: Norm, shape: tuple[int, int, int], share: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    clean = torch.rand(2, *shape, generator=generator) * 0.4 + 0.3
    scalars = clean[0].numel()
    radius = {"l2": share * scalars**0.5, "l1": share * scalars, "l0": max(1, int(share * scalars))}[norm]
    adversarial = _moved(clean, norm, radius, seed)
    checked = verify(clean, adversarial, Bound(norm, radius))
    assert not checked.out_of_ball.any()
    assert torch.equal(checked.images, adversarial)


@pytest.mark.parametrize("norm", ROUND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_attack_that_projects_by_itself_is_not_flagged(norm: Norm, dtype: torch.dtype) -> None:
    """As attacks do it, in their own precision: a perturbation that is scaled, added and clipped."""
    clean = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(6)).to(dtype)
    flat = noise.flatten(1)
    if norm == "l0":
        least = flat.abs().topk(50, dim=1).values[:, -1:]
        flat, radius = torch.where(flat.abs() >= least, flat, 0), 50.0
    else:
        radius = 2.0
        flat = flat * (radius / flat.norm(p=2 if norm == "l2" else 1, dim=1, keepdim=True))
    adversarial = (clean.to(dtype) + flat.view_as(clean)).clamp(0, 1)
    assert not verify(clean, adversarial, Bound(norm, radius)).out_of_ball.any()


@pytest.mark.parametrize(("norm", "size"), [("l2", 1.001), ("l1", 1.001), ("l0", 1.05)])
def test_a_little_outside_is_outside(norm: Norm, size: float, colour: Tensor) -> None:
    adversarial = _moved(colour, norm, size * RADII[norm])
    assert outside(colour, adversarial, Bound(norm, RADII[norm])).all()


def test_scalars_that_rounding_moved_are_not_counted_as_changed(colour: Tensor) -> None:
    adversarial = _moved(colour, "l0", RADII["l0"])
    same = adversarial == colour
    adversarial[same] += 1e-7
    assert ((adversarial != colour).flatten(1).sum(1) > RADII["l0"]).all()
    assert not verify(colour, adversarial, Bound("l0", RADII["l0"])).out_of_ball.any()


@pytest.mark.parametrize("norm", ROUND)
def test_an_image_that_is_clipped_is_measured_after_clipping(norm: Norm, colour: Tensor) -> None:
    adversarial = _moved(colour, norm, 0.3 * RADII[norm])
    adversarial[2, 0, 0, 0] = 50.0
    small = {"l2": 0.5, "l1": 3.0, "l0": 20.0}[norm]
    checked = verify(colour, adversarial, Bound(norm, small))
    assert checked.out_of_box.nonzero().flatten().tolist() == [2]
    clipped = adversarial.clamp(0, 1)
    flagged = _sizes(colour, clipped, norm) > small
    assert checked.out_of_ball.tolist() == flagged.tolist()
    assert checked.images.max() <= 1
    assert (_sizes(colour, checked.images, norm) <= small + 1e-4).all()


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), radius=st.floats(0.01, 8), size=st.floats(0, 3))
def test_whatever_comes_in_what_goes_out_is_in_box_and_ball(norm: Norm, seed: int, radius: float, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    clean = torch.rand(3, 1, 4, 4, generator=generator)
    adversarial = clean + size * torch.randn(3, 1, 4, 4, generator=generator)
    adversarial[0, 0, 0, 0] = float("nan")
    bound = Bound(norm, radius)
    checked = verify(clean, adversarial, bound)
    assert checked.images.isfinite().all() and checked.images.min() >= 0 and checked.images.max() <= 1
    assert (_sizes(clean, checked.images, norm) <= radius * (1 + 1e-6) + 1e-5).all()
    again = verify(clean, checked.images, bound)
    assert torch.equal(again.images, checked.images) and not (again.out_of_ball | again.out_of_box).any()


@pytest.mark.parametrize("norm", NORMS)
def test_norms_equal_those_of_numpy(norm: Norm, colour: Tensor) -> None:
    adversarial = _moved(colour, "l0", 7)
    found = norms(colour, adversarial)
    assert set(found) == set(NORMS)
    np.testing.assert_allclose(found[norm].numpy(), _sizes(colour, adversarial, norm), rtol=1e-5)


# --- how much is rounding: sizes that float32 holds exactly, so that every sum below is exact ---


def _moved_by(clean: float, change: float, scalars: int = 64) -> tuple[Tensor, Tensor]:
    """Two images, every scalar of them moved by the change."""
    images = torch.full((2, 1, 8, scalars // 8), clean)
    return images, images + change


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("excess", "flagged"), [(2.0**-20, False), (2.0**-19, True), (1e-4, True)])
def test_a_millionth_outside_the_linf_ball_is_rounding_and_two_are_not(sign: int, excess: float, flagged: bool) -> None:
    clean, adversarial = _moved_by(0.5, sign * (0.25 + excess))
    checked = verify(clean, adversarial, Bound("linf", 0.25))
    assert checked.out_of_ball.tolist() == [flagged] * 2
    assert torch.equal(checked.images, clean + sign * 0.25 if flagged else adversarial)


@pytest.mark.parametrize("eps", [0.01, 0.1, 0.3, 8 / 255])
def test_kept_images_exceed_the_radius_by_what_the_documentation_says(eps: float) -> None:
    """Every pixel of a byte, moved up and down by the radius in float32, and measured in float64."""
    said = (Path(__file__).parents[3] / "docs" / "attacks.md").read_text(encoding="utf-8")
    allowed, usual = (float(re.search(words, said)[1]) for words in (r"\| L∞ \| (\S+) \|", r"by at most (\S+e-\d+)"))  # type: ignore[index]
    clean = (torch.arange(256) / 255).view(1, 1, 16, 16).repeat(2, 1, 1, 1)
    checked = verify(clean, (clean + torch.tensor([eps, -eps])[:, None, None, None]).clamp(0, 1), Bound("linf", eps))
    excess = (checked.images.double() - clean.double()).abs().amax().item() - eps
    assert not checked.out_of_ball.any() and 0 < excess < usual
    assert outside(clean, clean + eps + 2 * allowed, Bound("linf", eps)).all()
    assert not outside(clean, clean + eps + allowed / 2, Bound("linf", eps)).any()


def test_a_millionth_itself_is_still_rounding() -> None:
    assert not outside(*_moved_by(0.0, 0.25 + 1e-6), Bound("linf", 0.25)).any()


@pytest.mark.parametrize(("excess", "flagged"), [(2.0**-20, False), (1e-6, False), (2.0**-19, True), (1e-4, True)])
def test_a_millionth_outside_the_box_is_rounding_and_two_are_not(excess: float, flagged: bool) -> None:
    dark, bright = torch.full((1, 1, 2, 2), -excess), torch.full((1, 1, 2, 2), 1 + excess)
    for adversarial, edge in ((dark, 0.0), (bright, 1.0)):
        checked = verify(torch.full_like(adversarial, 0.5), adversarial, None)
        assert checked.out_of_box.item() == flagged and (checked.images == edge).all()


@pytest.mark.parametrize(("change", "counts"), [(2.0**-20, False), (1e-6, False), (2.0**-19, True), (1e-4, True)])
def test_a_scalar_counts_as_changed_from_a_millionth_on(change: float, counts: bool) -> None:
    clean, adversarial = _moved_by(0.0, change)
    assert outside(clean, adversarial, Bound("l0", 63)).tolist() == [counts] * 2
    assert not outside(clean, adversarial, Bound("l0", 64)).any()


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize(
    ("change", "rounding", "too_much"), [(2.0**-6, 2.0**-23, 2.0**-22), (2.0**-1, 2.0**-21, 2.0**-20)]
)
def test_a_unit_of_float32_per_scalar_and_a_millionth_of_the_radius_are_rounding(
    norm: Norm, change: float, rounding: float, too_much: float
) -> None:
    """A small radius is exceeded by units of rounding, 2⁻²³ per scalar; a large one by its own millionth."""
    bound = Bound(norm, change * 64 ** (0.5 if norm == "l2" else 1))
    assert not outside(*_moved_by(0.25, change + rounding), bound).any()
    assert outside(*_moved_by(0.25, change + too_much), bound).all()


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_the_size_of_a_large_image_is_summed_in_float64(norm: Norm) -> None:
    """A float32 sum of 27,648 scalars is off by parts in ten million; the verdict changes within one in a billion."""
    images = torch.rand(6, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    clean, scalars = torch.zeros_like(images), images[0].numel()
    units = 2.0**-23 * (scalars**0.5 if norm == "l2" else scalars)
    for image, size in enumerate(_sizes(clean, images, norm)):
        radius = (size - units) / (1 + 1e-6)  # the smallest that the image is inside of
        pair = clean[image : image + 1], images[image : image + 1]
        assert not outside(*pair, Bound(norm, radius * (1 + 1e-9))).any()
        assert outside(*pair, Bound(norm, radius * (1 - 1e-9))).all()


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_a_large_image_is_projected_in_float64(norm: Norm) -> None:
    """Sums in float32 miss the radius by parts in ten million; rounding the result once, by a tenth of that."""
    images = torch.rand(2, 3, 96, 96, generator=torch.Generator().manual_seed(0)) * 0.5
    clean, radius = torch.zeros_like(images), 0.02 * float(_sizes(torch.zeros_like(images), images, norm).min())
    found = _rows(project(clean, images, Bound(norm, radius)))
    np.testing.assert_allclose(np.linalg.norm(found, 2 if norm == "l2" else 1, axis=1), radius, rtol=5e-8)


# --- both directions, and the public parts on their own ---


def test_images_that_became_darker_only_have_moved_too(clean: Tensor) -> None:
    assert verify(clean, clean - 0.05, Bound("linf", 0.1)).moved.all()


@pytest.mark.parametrize("sign", [1, -1])
def test_an_image_outside_the_linf_ball_is_moved_to_the_side_it_came_from(sign: int, clean: Tensor) -> None:
    checked = verify(clean, clean + sign * 0.09, Bound("linf", 0.05))
    torch.testing.assert_close(checked.images, clean + sign * 0.05, atol=1e-7, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_projection_leaves_an_image_inside_where_it_is(norm: Norm, colour: Tensor) -> None:
    images = _moved(colour, "l0", 7)
    radius = {"linf": 0.1, "l2": 2.0, "l1": 9.0, "l0": 20.0}[norm]
    torch.testing.assert_close(project(colour, images, Bound(norm, radius)), images, atol=1e-7, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("clean", "value", "edge"), [(0.9, 1.5, 1.0), (0.1, -0.5, 0.0)])
def test_projection_ends_in_the_box_wherever_it_begins(norm: Norm, clean: float, value: float, edge: float) -> None:
    """A ball that is wide enough for the image, around a clean one that is close to the edge of the box."""
    found = project(torch.full((1, 1, 2, 2), clean), torch.full((1, 1, 2, 2), value), Bound(norm, 4))
    assert (found == edge).all()


def test_what_is_judged_lies_in_memory_as_images_do() -> None:
    clean = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    adversarial = (clean + 0.01).to(memory_format=torch.channels_last)
    assert not adversarial.is_contiguous() and verify(clean, adversarial, None).images.is_contiguous()


def test_however_little_a_scalar_changes_l0_counts_it() -> None:
    clean = torch.full((1, 1, 2, 4), 0.5)
    change = torch.tensor([2.0**-24, -(2.0**-24), 1e-5, -1e-5, 1e-3, -0.1, 0.0, 0.0]).reshape(clean.shape)
    adversarial = clean + change
    assert norms(clean, adversarial)["l0"].tolist() == [6] == [np.count_nonzero(_rows(adversarial) - _rows(clean))]


def test_norms_of_large_images_are_summed_in_float64() -> None:
    images = torch.rand(4, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    found = norms(torch.zeros_like(images), images)
    for norm, order in (("linf", np.inf), ("l2", 2), ("l1", 1)):
        np.testing.assert_allclose(found[norm].numpy(), np.linalg.norm(_rows(images), order, axis=1), rtol=1e-12)
