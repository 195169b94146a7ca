"""What a cell costs before it is run: gradients of the whole ensemble, by which runs are timed, planned and shared out.

Counts are upper bounds: an attack that stops early, or leaves fooled images alone, needs fewer.
"""

from __future__ import annotations

import math
from typing import Any

from benchmark.attacks.native.mora import MIXES
from benchmark.cells import Cell
from benchmark.datasets.catalogue import DATASETS
from benchmark.evaluations.strong import read_stage

FORWARD = 0.5
"""A forward pass beside a gradient: with frozen weights, going back costs about what going forth did."""
CHECKS = 3 * FORWARD
"""What the harness adds to every image: the clean one looked at once, the adversarial one twice."""


def gradients(cell: Cell) -> float:
    """Gradients of the whole ensemble that an attack may take for one image; a query counts as `FORWARD`."""
    if cell.attack == "none":
        return 0.0
    about = DATASETS.get(cell.dataset)
    scalars = math.prod(about.shape)
    if cell.evaluation == "strong":
        stages = [read_stage(text) for text in cell.settings["stages"]]
        return sum(
            _passes(stage.named.name, stage.named.settings(), scalars, about.classes)
            / (1 if stage.source == "ensemble" else cell.members)
            for stage in stages
        )
    passes = _passes(cell.attack, cell.settings, scalars, about.classes)
    return passes / cell.members if cell.evaluation == "transfer" else passes  # one member is attacked there


def work(cell: Cell) -> float:
    """The whole cell in gradients of one image, with what the harness does beside the attack."""
    return cell.samples * (FORWARD if cell.attack == "none" else gradients(cell) + CHECKS)


def _passes(attack: str, settings: dict[str, Any], scalars: int, classes: int) -> float:
    """Gradients that one attack takes for one image."""
    ascents = settings.get("steps", 1) * settings.get("restarts", 1)
    targets = min(settings.get("targets", 0), classes - 1)
    if attack == "jsma":
        return math.floor(settings["gamma"] * scalars + 1e-9)
    if attack == "square":
        return FORWARD * settings["queries"]
    if attack == "mora":
        return settings["steps"] * (len(MIXES) + targets)
    if attack in ("apgd-t", "fab-t"):
        return ascents * targets
    if attack == "autoattack":  # its parts: apgd-ce, apgd-t, fab-t and square as the reference sets them
        return 100 + 2 * 100 * min(9, classes - 1) + FORWARD * 5000
    if attack == "cascade":  # ascents of 20 and of 200 steps, three times each; then boundary walks of 1000 steps
        return 3 * 20 + 3 * 200 + 1000 * settings["walks"]
    return float(ascents)
