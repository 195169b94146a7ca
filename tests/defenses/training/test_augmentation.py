"""Augmentation shifts and mirrors, image by image, and repeats with its generator."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from defenses.training.augmentation import augment, resize
from defenses.training.recipes import Recipe

STILL = Recipe("test", epochs=1, batch_size=2, learning_rate=1e-3, schedule="steps", shift=0.0)


@pytest.fixture
def images() -> Tensor:
    return torch.rand(64, 3, 10, 10, generator=torch.Generator().manual_seed(0))


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_nothing_asked_for_is_nothing_done(images: Tensor) -> None:
    assert augment(images, STILL, _generator()) is images


def test_half_of_the_images_are_mirrored_and_the_others_untouched(images: Tensor) -> None:
    found = augment(images, replace(STILL, flip=True), _generator())
    same = torch.isclose(found, images, atol=1e-5).flatten(1).all(1)
    mirrored = torch.isclose(found, images.flip(-1), atol=1e-5).flatten(1).all(1)
    assert (same ^ mirrored).all()
    assert 20 <= mirrored.sum() <= 44


def test_shifts_are_whole_pixels_up_to_a_tenth_of_the_side_with_edges_repeated(images: Tensor) -> None:
    found = augment(images, replace(STILL, shift=0.1), _generator())
    padded = functional.pad(images, (1, 1, 1, 1), mode="replicate")
    used = set()
    for image, source in zip(found, padded, strict=True):
        fitting = [
            (row, column)
            for row in range(3)
            for column in range(3)
            if torch.allclose(image, source[:, row : row + 10, column : column + 10], atol=1e-4)
        ]
        assert len(fitting) == 1, "every image is one of the nine shifts of itself"
        used.update(fitting)
    assert len(used) == 9


def test_subpixel_shifts_lie_between_the_pixels(images: Tensor) -> None:
    ramp = torch.arange(10.0).expand(64, 3, 10, 10)
    found = augment(ramp, replace(STILL, shift=0.1, subpixel_shift=True), _generator())
    distance = (found - ramp)[:, 0, 5, 5]
    assert distance.abs().max() <= 1 + 1e-4
    assert ((distance - distance.round()).abs() > 0.01).float().mean() > 0.9


def test_the_same_generator_gives_the_same_images(images: Tensor) -> None:
    recipe = replace(STILL, shift=0.1, flip=True)
    assert torch.equal(augment(images, recipe, _generator()), augment(images, recipe, _generator()))


def test_resizing_keeps_the_mean_and_takes_one_image_or_many() -> None:
    images = torch.rand(4, 3, 32, 32, generator=_generator())
    small = resize(images, 0.5)
    assert small.shape == (4, 3, 16, 16)
    torch.testing.assert_close(small.mean((-1, -2)), images.mean((-1, -2)), atol=0.02, rtol=0)
    torch.testing.assert_close(resize(images[0], 0.5), small[0])
    assert resize(images, 1.0) is images
    assert resize(images, 0.1).shape[-1] == 8, "no smaller than eight pixels"
