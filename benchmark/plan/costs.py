"""What a cell costs before it is run: gradients of the whole ensemble, by which runs are timed, planned and shared out.

Counts are upper bounds: an attack that stops early, or leaves fooled images alone, needs fewer.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from benchmark.attacks.definitions import FORWARD
from benchmark.cells.cell import Cell
from benchmark.datasets.lookup import named

CHECKS = FORWARD
"""What the harness adds to every image: the adversarial one is looked at, and a few of a batch twice."""


def gradients(cell: Cell) -> float:
    """Gradients of the whole ensemble that an attack may take for one image; a query counts as `FORWARD`."""
    about = named(cell.images.dataset)
    return cell.task.gradients(math.prod(about.shape), about.classes, cell.ensemble.members)


def work(cell: Cell, beside: Collection[Cell] = ()) -> float:
    """The whole cell in gradients of one image, with what the harness does beside the attack.

    A cell that takes its images from one ``beside`` it costs nothing.
    """
    if cell.paper_twin in beside:
        return 0.0
    return cell.images.samples * (gradients(cell) + CHECKS if cell.task.attacks else FORWARD)
