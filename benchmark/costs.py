"""What a cell costs before it is run: gradients of the whole ensemble, by which runs are timed, planned and shared out.

Counts are upper bounds: an attack that stops early, or leaves fooled images alone, needs fewer.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from benchmark.attacks import parse_attack
from benchmark.attacks.definitions import FORWARD
from benchmark.cells import Cell
from benchmark.datasets.catalogue import DATASETS
from benchmark.evaluations.strong import read_stage

CHECKS = FORWARD
"""What the harness adds to every image: the adversarial one is looked at, and a few of a batch twice."""


def gradients(cell: Cell) -> float:
    """Gradients of the whole ensemble that an attack may take for one image; a query counts as `FORWARD`."""
    if cell.attack == "none":
        return 0.0
    if cell.evaluation == "strong":
        stages = [read_stage(text) for text in cell.settings["stages"]]
        parts = [(stage.named, stage.source != "ensemble") for stage in stages]
    else:
        named = parse_attack(f"{cell.attack}@{cell.library}({cell.parameters})")
        parts = [(named, cell.evaluation == "transfer")]  # one member is attacked there
    about = DATASETS.get(cell.dataset)
    scalars = math.prod(about.shape)
    return sum(
        named.attack.gradients(scalars, about.classes) / (cell.members if alone else 1) for named, alone in parts
    )


def work(cell: Cell, beside: Collection[Cell] = ()) -> float:
    """The whole cell in gradients of one image, with what the harness does beside the attack.

    A cell that takes its images from one ``beside`` it costs nothing.
    """
    if cell.paper_twin in beside:
        return 0.0
    return cell.samples * (FORWARD if cell.attack == "none" else gradients(cell) + CHECKS)
