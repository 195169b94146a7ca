"""The material for the batches of one ensemble: its weights, and its test images in the order of its cells."""

from __future__ import annotations

import torch

from benchmark.cells.cell import rows_in
from benchmark.harness.subject import Material
from benchmark.plan.planning import Work
from benchmark.plan.run_request import Request
from defenses.members.images import LabelledImages


def taken(part: Work, request: Request, samples: int) -> LabelledImages:
    """The first test images in the order of the request."""
    test = part.data.test
    if request.taken == "file":
        return test.subset(slice(0, samples))
    return test.subset(torch.from_numpy(rows_in(request.taken, len(test))[:samples]))


def material_of(part: Work, request: Request, samples: int) -> Material:
    """The material for cells of an ensemble with ``samples`` images."""
    return Material(
        ensemble=part.trained.ensemble,
        surrogate=part.surrogate.ensemble if part.surrogate else None,
        test=taken(part, request, samples),
        batch_size=part.grid.batch_size,
        device=request.device,
        keep_images=request.keep_images,
        acceleration=request.acceleration,
        spec=part.trained.spec,
        trust=request.trust,
    )
