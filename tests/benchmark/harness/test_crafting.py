"""Crafting draws from seeds of its own: every generator is given back, and a target is the image's alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from benchmark.harness.crafting import seeded, wrong_labels


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
