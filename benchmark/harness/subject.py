"""The subject of an evaluation: a prepared ensemble, the test images, and its predictions for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmark.harness.acceleration import PROBED, accelerated, reduced
from benchmark.harness.prepared import DRAWS, answers, is_random, predicted, prepared
from benchmark.harness.seeding import seeded
from defenses.members.combination import Random
from defenses.members.ensemble import Ensemble, predict_logits
from defenses.members.images import LabelledImages

Classes = NDArray[np.int64]
LOOKED_AT = 8
"""Number of images for the test whether a model's output is random."""


@dataclass(frozen=True)
class Subject:
    """A prepared ensemble on its device, with the test images and its predictions for them."""

    ensemble: Ensemble
    fast: nn.Module
    """The fast copy that attacks run on; the ensemble itself classifies their images."""
    images: Tensor
    labels: Classes
    logits: Tensor
    """Member logits of the clean images, (K, N, L), on the CPU."""
    outputs: Tensor
    """Outputs of the ensemble itself for the clean images, (N, L), on the CPU."""
    surrogate: nn.Module | None
    """Another ensemble, trained by the attacker, for black-box attacks."""
    say: Callable[[str], None] = lambda words: None
    """Gets a message if a fast copy cannot be used or is not faster."""
    report: Callable[[str], None] = lambda words: None
    """Gets messages about the progress of attacks and suites."""
    keep_images: bool = False
    """Whether the adversarial images that fool the ensemble are kept with the records."""
    draws: int = 1
    """Number of predictions per image; more than 1 if the output of the ensemble is random."""
    expected: NDArray[np.float64] | None = None
    """For a randomised ensemble, the probability of a correct prediction for each clean image."""

    @cached_property
    def p_clean(self) -> NDArray[np.float64]:
        """Probability of a correct prediction for each clean image: 0 or 1, unless the ensemble is randomised."""
        return (self.clean == self.labels).astype(np.float64) if self.expected is None else self.expected

    @cached_property
    def clean(self) -> Classes:
        """Predicted classes of the clean images."""
        return predicted(self.outputs)

    @property
    def classes(self) -> int:
        return self.outputs.shape[-1]

    @cached_property
    def short(self) -> nn.Module:
        """The attacked copy in bfloat16."""
        return reduced(self.fast, self.images[:PROBED], self.say)

    def member(self, number: int) -> Ensemble:
        """One member of the attacked copy."""
        assert isinstance(self.fast, Ensemble)
        return self.fast.member(number)


@dataclass(frozen=True, eq=False)
class Material:
    """Everything that a process needs to build a subject."""

    ensemble: Ensemble
    surrogate: Ensemble | None
    test: LabelledImages
    """The first test images in the order of the cells, enough for the largest cell."""
    batch_size: int
    device: torch.device
    keep_images: bool
    acceleration: str
    """How the attacked copy is made: one of `benchmark.harness.acceleration.MODES`."""
    spec: str = ""
    """The defense spec or checkpoint from which the ensemble was loaded."""
    trust: bool = False
    """Whether the checkpoint may be a program."""


@contextmanager
def subject_of(
    material: Material,
    logits: Tensor | None = None,
    say: Callable[[str], None] = lambda words: None,
    report: Callable[[str], None] = lambda words: None,
) -> Iterator[Subject]:
    """The prepared ensemble on its device; the member logits of the clean images are computed here unless given."""
    device = material.device
    ensemble = material.ensemble.to(device)
    other = material.surrogate.to(device) if material.surrogate else None
    with prepared(ensemble), prepared(other or ensemble):
        images = material.test.images().to(device)
        probe = images[: material.batch_size]
        wanted = None
        if logits is None:
            logits = predict_logits(ensemble, material.test, material.batch_size)
            wanted = ensemble.combination.combine(logits[:, : material.batch_size]).to(device)
        labels, rule, expected = material.test.labels.numpy(), ensemble.combination, None
        outputs, draws = rule.combine(logits), DRAWS if is_random(ensemble, probe[:LOOKED_AT]) else 1
        if isinstance(rule, Random):
            expected = rule.probability_right(logits, material.test.labels).numpy()
        elif draws > 1:
            with seeded(0, "clean", 0):
                outputs, expected = answers(ensemble, images, labels, material.batch_size, draws)
        yield Subject(
            ensemble=ensemble,
            fast=accelerated(ensemble, probe, material.acceleration, say, wanted),
            images=images,
            surrogate=accelerated(other, probe, material.acceleration, say) if other else None,
            labels=labels,
            logits=logits,
            say=say,
            outputs=outputs,
            expected=expected,
            draws=draws,
            report=report,
            keep_images=material.keep_images,
        )
