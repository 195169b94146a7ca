"""The estimated cost of a cell in gradients of the whole ensemble, used to time, plan and distribute runs.

Counts are upper bounds: an attack that stops early, or skips fooled images, needs fewer.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from benchmark.attacks.definitions import FORWARD
from benchmark.cells.cell import Cell
from benchmark.datasets.lookup import named

CHECKS = FORWARD
"""Cost of the harness's checks per image: the model judges each adversarial image, and a few of a batch twice."""


def gradients(cell: Cell) -> float:
    """Largest number of gradients of the whole ensemble for one image; a query counts as `FORWARD`."""
    about = named(cell.images.dataset)
    return cell.task.gradients(math.prod(about.shape), about.classes, cell.ensemble.members)


def work(cell: Cell, beside: Collection[Cell] = ()) -> float:
    """Cost of a whole cell in gradients of one image, including the checks of the harness.

    A cell that reuses the images of a cell in ``beside`` costs nothing.
    """
    if cell.paper_twin in beside:
        return 0.0
    return cell.images.samples * (gradients(cell) + CHECKS if cell.task.attacks else FORWARD)
