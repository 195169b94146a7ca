"""MORA's iterates equal those worked out by hand, and every iterate is judged, the last one too."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.definitions import MORA
from benchmark.attacks.native.mora import mora
from defenses.members.ensemble import Ensemble

EPS = 0.25
LAST = len(MORA.mixes) - 1
"""Number of the last start without a target: an image that is never fooled comes back from there."""


class _Linear(nn.Module):
    """The loss of class 0 rises with the first half of the pixels and falls with the second; never fooled."""

    def forward(self, images: Tensor) -> Tensor:
        first, second = images.flatten(1).chunk(2, dim=1)
        slope = (first - second).mean(1)
        return torch.stack([torch.full_like(slope, 5.0), slope], dim=1)


class _Peak(nn.Module):
    """The loss of class 0 is highest at the clean image, every pixel 0.5; never fooled."""

    def forward(self, images: Tensor) -> Tensor:
        height = -(images - 0.5).square().flatten(1).sum(1)
        return torch.stack([torch.full_like(height, 5.0), height], dim=1)


class _Brighter(nn.Module):
    """Class 1 from a brightness of 0.6 on."""

    def forward(self, images: Tensor) -> Tensor:
        brightness = images.flatten(1).mean(1)
        return torch.stack([torch.zeros_like(brightness), brightness - 0.6], dim=1)


def _moves(model: nn.Module, steps: int, variant: Literal["derived", "reference"] = "derived") -> tuple[Tensor, Tensor]:
    """Offsets from the clean image, in units of eps: of the start and of the point that MORA returns."""
    images = torch.full((4, 1, 4, 4), 0.5)
    attacked = AttackedModel(model, draws=range(4))
    found = mora(
        attacked, images, torch.zeros(4, dtype=torch.int64), MORA(EPS, steps=steps, targets=0, variant=variant)
    )
    start = 2 * attacked.uniform(torch.arange(4), (1, 4, 4), LAST) - 1
    return start, (found - images) / EPS


def test_one_step_goes_three_quarters_of_the_way_to_the_surface_of_the_ball() -> None:
    """The first step is 2·eps: from any start o it reaches the surface s = ±1, and x₁ = o + 0.75 (s − o)."""
    start, found = _moves(_Linear(), 1)
    surface = torch.ones(4, 16)
    surface[:, 8:] = -1
    torch.testing.assert_close(found, 0.25 * start + 0.75 * surface.view_as(start), atol=1e-5, rtol=0)


def test_the_first_step_of_the_reference_is_a_whole_one() -> None:
    _, found = _moves(_Linear(), 1, "reference")
    torch.testing.assert_close(found.abs(), torch.ones(4, 1, 4, 4), atol=1e-5, rtol=0)


def test_a_second_step_repeats_a_quarter_of_the_first() -> None:
    """The second of two steps is eps: x₂ = x₁ + 0.75 (s − x₁) + 0.25 (x₁ − o) = 1.125 s − 0.125 o: on the surface."""
    _, found = _moves(_Linear(), 2)
    torch.testing.assert_close(found.abs(), torch.ones(4, 1, 4, 4), atol=1e-5, rtol=0)


def test_steps_shrink_as_a_cosine_and_keep_a_quarter_of_the_last_move() -> None:
    """Three steps over a peak, of 2·eps (1 + cos πk/3) / 2 = 2, 1.5 and 0.5 eps, each to its other side.

    From a start o > 0: x₁ = o + 0.75 (−1 − o) = 0.25 o − 0.75, cut off at the surface; x₂ = x₁ + 0.75 · 1.5 +
    0.25 (x₁ − o) = 0.0625 o + 0.1875; x₃ = x₂ − 0.75 · 0.5 + 0.25 (x₂ − x₁) = (o + 3) / 64.
    """
    start, found = _moves(_Peak(), 3)
    torch.testing.assert_close(found, (start + 3 * start.sign()) / 64, atol=1e-5, rtol=0)


def test_an_image_that_only_the_last_step_fools_is_not_started_again() -> None:
    """One step ends at offset 0.25 o + 0.75 ≥ 0.5, brighter than 0.6; no start is, on average over its pixels."""
    images = torch.full((4, 1, 4, 4), 0.5)
    model = AttackedModel(_Brighter(), draws=range(4))
    start = 2 * model.uniform(torch.arange(4), (1, 4, 4), 0) - 1
    assert (_Brighter()(images + EPS * start).argmax(-1) == 0).all(), "no start fools"
    found = mora(model, images, torch.zeros(4, dtype=torch.int64), MORA(EPS, steps=1, targets=0))
    assert model.backwards == 4, "one ascent is enough"
    wanted = images + EPS * (0.25 * start + 0.75)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("targets", "starts"), [(0, 5), (1, 6), (9, 6)])
def test_what_is_never_fooled_is_started_once_per_mix_and_once_per_other_class(targets: int, starts: int) -> None:
    images = torch.full((2, 1, 4, 4), 0.5)
    model = AttackedModel(_Peak(), draws=range(2))
    mora(model, images, torch.zeros(2, dtype=torch.int64), MORA(EPS, steps=3, targets=targets))
    assert model.backwards == 2 * 3 * starts, "of two classes, one is another class"


# --- randomised ensembles ---


class _Above(nn.Module):
    """Class 1 where a pixel is above a limit; the logits differ by ``slope`` times the distance."""

    def __init__(self, pixel: int, limit: float, slope: float) -> None:
        super().__init__()
        self.pixel, self.limit, self.slope = pixel, limit, slope

    def forward(self, images: Tensor) -> Tensor:
        height = self.slope * (images.flatten(1)[:, self.pixel] - self.limit)
        return torch.stack([torch.zeros_like(height), height], dim=1)


def _drawn(*members: nn.Module, combine: str = "random") -> AttackedModel:
    return AttackedModel(Ensemble(list(members), combine=combine).eval(), draws=range(4))


GREY, ZEROS = torch.full((4, 1, 2, 2), 0.5), torch.zeros(4, dtype=torch.int64)


def test_an_image_stays_until_every_member_of_a_randomised_ensemble_is_wrong() -> None:
    """The first member is wrong already, and so certain that the mean is wrong too; the second one is right."""
    model = _drawn(_Above(0, 0.1, 100.0), _Above(1, 0.6, 5.0))
    assert (model(GREY).argmax(-1) == 1).all() and (model.probability_right(GREY, ZEROS) == 0.5).all()
    found = mora(model, GREY, ZEROS, MORA(EPS, steps=20, targets=0))
    assert (model.probability_right(found, ZEROS) == 0).all()


def test_a_further_ascent_never_makes_a_correct_prediction_more_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members cannot be fooled together, and an ascent of one step often fools the less likely one."""
    images, labels = torch.full((40, 1, 2, 2), 0.5), torch.zeros(40, dtype=torch.int64)
    drawn = Ensemble([_Above(0, 0.55, 40.0), _Above(0, 0.45, -9.0)], combine="random(p=0.4x0.6)").eval()
    before, mixes, first = torch.ones(40), MORA.mixes, 0.0
    for count in range(1, len(mixes) + 1):
        monkeypatch.setattr(MORA, "mixes", mixes[:count])
        model = AttackedModel(drawn, draws=range(40))
        right = model.probability_right(mora(model, images, labels, MORA(EPS, steps=1, targets=0)), labels)
        assert (right <= before).all()
        before, first = right, first or right.mean().item()
    assert before.mean() < first, "ascents differ, so one could be worse than another"


def test_the_image_with_the_lowest_expected_accuracy_is_kept() -> None:
    """Of two members that cannot be fooled together, each ascent may end at either; the likelier one counts 0.9."""
    up, down = _Above(0, 0.55, 9.0), _Above(0, 0.45, -9.0)
    model = _drawn(up, down, combine="random(p=0.1x0.9)")
    found = mora(model, GREY, ZEROS, MORA(EPS, steps=3, targets=0))
    assert (model.probability_right(found, ZEROS) < 0.2).all()


def test_members_that_are_never_drawn_need_not_be_wrong() -> None:
    model = _drawn(_Above(1, 0.6, 5.0), _Above(0, 0.9, 1.0), combine="random(p=1x0)")
    mora(model, GREY, ZEROS, MORA(EPS, steps=20, targets=1))
    assert model.backwards < 4 * 20, "fooled within the first ascent"
