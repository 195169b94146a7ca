"""What is measured on an ensemble: attacks on it, transfer between its members, detection, diversity.

An evaluation is a function ``batch(subject, cell, attack, first, end)`` that gives one record per image;
`find_evaluation` looks it up by the name that a cell carries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from torch import Tensor, nn

from benchmark.attacks import NamedAttack
from benchmark.cells import Cell
from defenses.members.ensemble import Ensemble


@dataclass(frozen=True)
class Subject:
    """An ensemble on its device, prepared, with the images it is evaluated on and what it makes of them unharmed."""

    ensemble: Ensemble
    fast: nn.Module
    images: Tensor
    labels: Tensor
    logits: Tensor
    """Member logits of the clean images, (K, N, L), on the CPU."""
    outputs: Tensor
    """What the ensemble itself gives for the clean images, (N, L), on the CPU."""
    surrogate: nn.Module | None
    """Another ensemble, trained by the attacker, for black-box attacks."""
    report: Callable[[str], None] = lambda words: None
    """Told what is being done, by evaluations of many parts."""
    keep_images: bool = False
    """Adversarial images that fool the ensemble are kept with the records (column ``adversarial``, float32 bytes)."""

    @property
    def clean(self) -> Tensor:
        """Predicted classes of the clean images, (N,), on the CPU."""
        return self.outputs.argmax(-1)

    @property
    def classes(self) -> int:
        return self.outputs.shape[-1]


EVALUATIONS = ("clean", "whitebox", "strong", "blackbox", "transfer", "detection", "diversity")
"""Every evaluation, in the order of a report."""

Batch = Callable[[Subject, Cell, NamedAttack | None, int, int], pd.DataFrame]


def find_evaluation(name: str) -> Batch:
    """The function that evaluates a batch for cells of this kind."""
    from benchmark.evaluations import blackbox, clean, detection, diversity, strong, transferability, whitebox

    modules = (clean, whitebox, strong, blackbox, transferability, detection, diversity)
    return {known: module.batch for known, module in zip(EVALUATIONS, modules, strict=True)}[name]
