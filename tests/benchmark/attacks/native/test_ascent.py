"""Projected gradient ascent judges every iterate, the last one too, and starts again only on images not fooled yet."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.definitions import PGD
from benchmark.attacks.native.ascent import pgd, restarted
from defenses.members.ensemble import Ensemble

EPS = 0.25
BRIGHT, DARK = 0.5, 0.25


class _Brighter(nn.Module):
    """Class 1 from a brightness of 0.7 on: only the brightest point of the ball around 0.5 gets there."""

    def forward(self, images: Tensor) -> Tensor:
        brightness = images.flatten(1).mean(1)
        return torch.stack([torch.zeros_like(brightness), brightness - 0.7], dim=1)


@pytest.fixture
def images() -> Tensor:
    return torch.tensor([BRIGHT, DARK, BRIGHT]).reshape(3, 1, 1, 1).expand(3, 1, 2, 2).contiguous()


@pytest.fixture
def model() -> AttackedModel:
    return AttackedModel(_Brighter(), draws=range(3))


def _start(model: AttackedModel, restart: int) -> Tensor:
    return (2 * model.uniform(torch.arange(3), (1, 2, 2), restart) - 1) * EPS


@pytest.mark.parametrize("targeted", [False, True])
def test_an_image_that_only_the_last_step_fools_is_not_started_again(
    targeted: bool, images: Tensor, model: AttackedModel
) -> None:
    """A step of 2·eps goes from any start to the brightest point, and there is one step."""
    attack = PGD(EPS, steps=1, step_size=2 * EPS, targeted=targeted, restarts=3)
    assert (_Brighter()(images + _start(model, 0)).argmax(-1) == 0).all(), "no start fools"
    labels = torch.full((3,), int(targeted))
    adversarial = images.clone()
    left = restarted(model, images, labels, attack, adversarial, torch.arange(3))
    assert left.tolist() == [1], "the dark image ends at 0.5, which is not enough"
    assert torch.equal(adversarial, images + EPS)
    assert model.backwards == 3 + 1 + 1, "two more starts, of one image"
    assert model.forwards == 2 * model.backwards, "each step is one look before and, the last, one after"


def test_steps_have_the_size_asked_for_and_go_up_the_gradient_of_the_loss(images: Tensor, model: AttackedModel) -> None:
    """Two steps of eps/4 from a start at offset o end at o + eps/2, or on the surface of the ball."""
    found = pgd(model, images, torch.zeros(3, dtype=torch.int64), PGD(EPS, steps=2, step_size=EPS / 4))
    wanted = images + (_start(model, 0) + EPS / 2).clamp(-EPS, EPS)
    torch.testing.assert_close(found, wanted.clamp(0, 1), atol=1e-6, rtol=0)


def test_towards_a_target_the_loss_falls(images: Tensor, model: AttackedModel) -> None:
    attack = PGD(EPS, steps=2, step_size=EPS / 4, targeted=True)
    found = pgd(model, images, torch.ones(3, dtype=torch.int64), attack)
    wanted = images + (_start(model, 0) + EPS / 2).clamp(-EPS, EPS)
    torch.testing.assert_close(found, wanted.clamp(0, 1), atol=1e-6, rtol=0)


class _Never(nn.Module):
    """Class 0 everywhere."""

    def forward(self, images: Tensor) -> Tensor:
        certain = 5 + 0 * images.flatten(1).mean(1)
        return torch.stack([certain, torch.zeros_like(certain)], dim=1)


@pytest.mark.parametrize("combine", ["random", "probabilities"])
def test_further_starts_on_a_randomised_ensemble_keep_the_best_image_of_the_starts_before(
    combine: str, images: Tensor
) -> None:
    """One member is fooled by the brightest image of the ball alone, which short steps do not reach."""
    model = AttackedModel(Ensemble([_Brighter(), _Never()], combine=combine).eval(), draws=range(3))
    labels, adversarial = torch.zeros(3, dtype=torch.int64), images.clone()
    left = restarted(model, images, labels, PGD(EPS, steps=2, step_size=EPS), adversarial, torch.arange(3))
    best = adversarial.clone()
    before = model.probability_right(best, labels)
    restarted(model, images, labels, PGD(EPS, steps=1, step_size=EPS / 100), adversarial, left, first=1)
    if combine == "random":
        assert before.tolist() == [0.5, 1.0, 0.5]
        assert torch.equal(adversarial[[0, 2]], best[[0, 2]]), "the weaker attack overwrites nothing"
    else:
        assert not torch.equal(adversarial, best), "without randomness the last image counts"
