"""Crafting draws from seeds of its own and gives every generator back; a second look finds a model that is random."""

from __future__ import annotations

import random
import re
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmark.attacks import parse_attack
from benchmark.harness.crafting import craft, judge, wrong_labels
from benchmark.harness.prepared import prepared
from benchmark.harness.seeding import seeded
from benchmark.harness.subject import Subject
from defenses.members.ensemble import Ensemble


def test_seeding_gives_every_generator_back_even_after_an_error() -> None:
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    with seeded(0, "x", 0):
        first = (random.random(), np.random.rand(), torch.rand(()).item())
    with seeded(0, "x", 0):
        assert (random.random(), np.random.rand(), torch.rand(()).item()) == first
    with pytest.raises(RuntimeError), seeded(0, "x", 0):
        raise RuntimeError
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_targets_are_uniform_over_the_wrong_labels() -> None:
    labels = np.arange(9000) % 10
    targets = wrong_labels(labels, 10, 0, 0)
    assert (targets != labels).all() and targets.min() >= 0 and targets.max() <= 9
    counts = np.bincount((targets - labels) % 10, minlength=10)[1:]
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 26.1, "chi-squared with 8 degrees of freedom, p = 0.001"


def test_a_target_depends_on_the_image_and_the_seed_not_on_the_batch() -> None:
    labels = np.arange(50) % 10
    whole = wrong_labels(labels, 10, 0, 0)
    parts = [wrong_labels(labels[first : first + 7], 10, first, 0) for first in range(0, 50, 7)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert not np.array_equal(wrong_labels(labels, 10, 0, 1), whole)


# --- a second look ---


class _Drifting(nn.Module):
    """Logits (0, 0); at every look, those of the rows given move by ``by``."""

    def __init__(self, rows: list[int], by: float = 1.0) -> None:
        super().__init__()
        self.rows, self.by = rows, by
        self.looks: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        output = torch.zeros(len(images), 2)
        for row in self.rows:
            output[row : row + 1] = self.by * len(self.looks)
        self.looks.append(len(images))
        return output


def _subject(model: nn.Module) -> Subject:
    """A subject of which the judge needs the model alone."""
    nothing = torch.zeros(0)
    return Subject(cast(Ensemble, model), model, nothing, np.zeros(0, dtype=np.int64), nothing, nothing, None)


def _unstable(model: nn.Module, count: int) -> list[bool]:
    clean, images, labels = torch.zeros(count, 2), torch.zeros(count, 1, 2, 2), np.zeros(count, dtype=np.int64)
    found = judge(_subject(model), clean, images, labels, labels, targeted=False).found
    return [bool(value) for value in found["unstable"]]


@pytest.mark.parametrize("row", range(4))
def test_a_random_output_is_seen_on_any_of_the_first_four_images(row: int) -> None:
    """Randomness that depends on the image may spare the first one."""
    assert _unstable(_Drifting([row]), 6) == [place == row for place in range(6)]


def test_a_second_look_costs_four_images_however_many_there_are() -> None:
    for count, twice in ((2, 2), (4, 4), (50, 4)):
        model = _Drifting(list(range(count)))
        assert _unstable(model, count) == [True] * twice + [False] * (count - twice)
        assert model.looks == [count, twice]


def test_rounding_is_no_second_opinion() -> None:
    assert not any(_unstable(_Drifting([0], by=5e-5), 4))
    assert _unstable(_Drifting([0], by=5e-4), 4)[0]


@pytest.mark.parametrize("targeted", [False, True])
def test_a_margin_that_moved_against_the_goal_is_told(targeted: bool) -> None:
    """Class 0 loses on the first image, gains on the second and stays as it was on the third."""
    clean = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    after = torch.tensor([[0.5, 0.0], [1.5, 0.0], [1.0, 0.0]])

    class Fixed(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return after[: len(images)]

    labels = np.zeros(3, dtype=np.int64)
    seen = judge(_subject(Fixed()), clean, torch.zeros(3, 1, 2, 2), labels, labels, targeted)
    assert seen.predictions.tolist() == [0, 0, 0] and seen.right.tolist() == [1, 1, 1]
    assert not seen.found["unstable"].any()
    assert seen.found["wrong_way"].tolist() == ([True, False, False] if targeted else [False, True, False])


@pytest.mark.parametrize(
    ("spec", "words"),
    [("pgd(eps=0.1,steps=20)", r"\d+% of a batch of 6"), ("foolbox:L2PGD(eps=1,steps=9)", "for each of 6")],
)
def test_a_long_attack_says_how_far_it_has_come(
    spec: str, words: str, ensemble: Ensemble, digits: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmark.attacks.attacked.REPORT", 0.0)
    named, images, labels = parse_attack(spec), digits[0][:6], digits[1][:6].numpy()
    said: list[str] = []
    with prepared(ensemble):
        told = craft(ensemble, named, images, labels, 0, 0, report=said.append)
        untold = craft(ensemble, named, images, labels, 0, 0)
    assert len(said) >= 9 and all(re.search(words, line) and named.label in line for line in said[1:])
    assert torch.equal(told.images, untold.images)
