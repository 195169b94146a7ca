"""Crafting: an attack runs on a batch, its images are verified, and the model judges them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmark.attacks import NamedAttack
from benchmark.attacks.attacked import AttackedModel, Output, number_from
from benchmark.attacks.definitions import FORWARD
from benchmark.attacks.native.losses import margin
from benchmark.harness.integrity import unchanged
from benchmark.harness.prepared import answers, outputs, predicted
from benchmark.harness.seeding import seeded
from benchmark.harness.subject import Classes, Subject
from benchmark.harness.verification import norms, verify

LOOKED_AT_TWICE = 4
"""Number of images per batch that the model classifies twice: a random output differs on every image."""


@dataclass(frozen=True)
class Crafted:
    """Verified adversarial images, the findings for each image, and their cost."""

    images: Tensor
    found: dict[str, NDArray[Any]]
    forwards: int
    backwards: int
    seconds: float

    def kept(self, clean: Tensor, better: NDArray[np.bool_]) -> Crafted:
        """The same, with the clean image in every row where ``better`` is False."""
        if better.all():
            return self
        chosen = torch.from_numpy(better).to(clean.device)[:, None, None, None]
        return replace(self, images=torch.where(chosen, self.images, clean))

    def costs(self, count: int) -> dict[str, float | int]:
        """The cost of the batch, divided evenly among ``count`` images."""
        return {
            "forwards": self.forwards / count,
            "backwards": self.backwards / count,
            "seconds": self.seconds / count,
            "batch_size": count,
        }


def craft(
    model: nn.Module,
    named: NamedAttack,
    images: Tensor,
    given: Classes,
    first: int,
    seed: int,
    output: Output = "log-probabilities",
    rows: NDArray[np.int64] | None = None,
    report: Callable[[str], None] = lambda words: None,
) -> Crafted:
    """Run an attack on a batch and verify its images; ``given`` are labels, or targets of a targeted attack.

    ``rows`` are the positions of the images in the batch that begins at ``first``; None means the whole batch.
    ``report`` gets the progress of the attack about every second.
    """
    places = range(len(images)) if rows is None else rows.tolist()
    draws = [(seed, named.text, first + place) for place in places]
    attacked = AttackedModel(model, output, draws, images, lambda seen: report(_so_far(named, seen, images)), named.eot)
    backend = named.backend()  # imports the library before the clock starts
    began = time.perf_counter()
    with unchanged(model, named.text), seeded(seed, named.text, first), torch.cuda.device_of(images):
        raw = backend(attacked, images.clone(), torch.from_numpy(given).to(images.device), named.attack)
    seconds = time.perf_counter() - began
    checked = verify(images, raw.to(images.device), named.bound)
    dead = attacked.dead_gradient
    if dead is None or len(dead) != len(images):  # no gradient, or the first one was not for the whole batch
        dead = torch.zeros(len(images), dtype=torch.bool)
    assert attacked.left is not None and attacked.undefined is not None
    unmoved = ~checked.moved
    if named.attack.keeps_survivors and attacked.forwards:
        unmoved = torch.zeros_like(unmoved)
    found = {
        "unmoved": unmoved,
        "not_finite": checked.not_finite,
        "out_of_box": checked.out_of_box,
        "out_of_ball": checked.out_of_ball,
        "zero_gradient": dead,
        "never_left": unmoved & ~attacked.left,
        "undefined": attacked.undefined,
        **norms(images, checked.images),
    }
    on_cpu = {name: values.cpu().numpy() for name, values in found.items()}
    return Crafted(checked.images, on_cpu, attacked.forwards, attacked.backwards, seconds)


def _so_far(named: NamedAttack, seen: AttackedModel, images: Tensor) -> str:
    """The progress of an attack, in words."""
    done = (seen.backwards + FORWARD * (seen.forwards - seen.backwards)) / len(images)
    whole = named.gradients(math.prod(images.shape[1:]), seen.classes)
    if not (named.attack.cost_known and 0 < done < whole):
        return f"{named.label}: {done:,.0f} gradients for each of {len(images)} images"
    return f"{named.label}: {done / whole:.0%} of a batch of {len(images)} images"


@dataclass(frozen=True)
class Judged:
    """The model's predictions for adversarial images."""

    predictions: Classes
    right: NDArray[np.float64]
    """Probability of a correct prediction: 0 or 1, unless the model is randomised."""
    found: dict[str, NDArray[np.bool_]]
    """The findings ``unstable`` and ``wrong_way`` of each image; see `judge`."""


def judge(
    subject: Subject, clean: Tensor, adversarial: Tensor, labels: Classes, given: Classes, targeted: bool
) -> Judged:
    """The model's predictions for adversarial images, with two checks; ``clean`` is its output for the clean images.

    ``unstable``: a second forward pass on the same pixels gives another output; only the first few images are checked.
    ``wrong_way``: the margin of the given class moved against the attack's goal.
    """
    model = subject.ensemble
    after, right = expected_answers(subject, adversarial, labels, len(adversarial))
    once = after if subject.draws == 1 else outputs(model, adversarial[:LOOKED_AT_TWICE], LOOKED_AT_TWICE)
    again = outputs(model, adversarial[:LOOKED_AT_TWICE], LOOKED_AT_TWICE)
    unstable = torch.zeros(len(after), dtype=torch.bool)
    stable = torch.isclose(once[:LOOKED_AT_TWICE], again, rtol=1e-3, atol=1e-4, equal_nan=True)
    unstable[:LOOKED_AT_TWICE] = ~stable.all(-1)
    classes = torch.from_numpy(given)
    rise = margin(clean, classes) - margin(after, classes)  # above 0 if the given class gained
    wrong_way = rise < 0 if targeted else rise > 0
    return Judged(predicted(after), right, {"unstable": unstable.numpy(), "wrong_way": wrong_way.numpy()})


def expected_answers(
    subject: Subject, images: Tensor, labels: Classes, batch_size: int
) -> tuple[Tensor, NDArray[np.float64]]:
    """The expected output of the ensemble for images, and the probability that its prediction is correct."""
    if subject.draws == 1:
        return answers(subject.ensemble, images, labels, batch_size)
    with seeded(0, "judge", 0):
        return answers(subject.ensemble, images, labels, batch_size, subject.draws)


def judged_afresh(subject: Subject, images: Tensor, labels: Classes, first: int) -> tuple[Classes, NDArray[np.float64]]:
    """The predictions for a batch that begins at ``first``, and the probabilities that they are correct, by new draws.

    For a model with random output: an image that was chosen by a low estimate is judged too low by this estimate.
    """
    with seeded(0, "final", first):
        output, right = answers(subject.ensemble, images, labels, len(images), subject.draws)
    return predicted(output), right


def wrong_labels(labels: Classes, classes: int, first: int, seed: int) -> Classes:
    """A uniformly drawn wrong label per image; it depends only on the image's row and the seed."""
    shifts = [1 + number_from(seed, "target", first + i) % (classes - 1) for i in range(len(labels))]
    return (labels + np.array(shifts, dtype=np.int64)) % classes


def pixels(images: Tensor, kind: type[np.floating[Any]]) -> tuple[list[bytes], list[list[int]]]:
    """The bytes of every image in the given precision, and its shape."""
    return [picture.cpu().numpy().astype(kind).tobytes() for picture in images], [list(images.shape[1:])] * len(images)
