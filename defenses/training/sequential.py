"""The sequential strategy of section 3.1: the simultaneous update with one member's graph in memory at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from defenses.members.ensemble import Ensemble, batch_norm_mode
from defenses.objectives import Defense, Result, checked, total


def sequential_step(
    defense: Defense,
    ensemble: Ensemble,
    optimiser: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    generator: torch.Generator,
) -> Result:
    """The update of `Defense.step`, one member after the other.

    The loss depends on the members through their logits alone. Its gradient with respect to the logits is
    computed first, from a pass without graphs, and then propagated back through one member after the other.
    """
    images, labels = defense.batch(ensemble, images, labels, generator)
    with torch.no_grad(), batch_norm_mode(ensemble, "as set"):
        logits = ensemble.member_logits(images)
    logits.requires_grad_()
    terms = checked(defense.objective(logits, labels), defense, len(labels))
    (gradient,) = torch.autograd.grad(total(terms), logits)
    optimiser.zero_grad()
    inputs = ensemble.normalise(images)
    for member, own in zip(ensemble.members, gradient, strict=True):
        output = ensemble.logits_of(member, inputs)
        if output.requires_grad:
            output.backward(own)
    optimiser.step()
    return Result(logits, labels, terms)
