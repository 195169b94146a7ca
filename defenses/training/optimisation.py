"""The optimiser, and the learning rate and batch norm momentum of each step."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from defenses.members.ensemble import Ensemble
from defenses.training.distributed import average_gradients
from defenses.training.recipes import Recipe

REMEMBERED = 0.1
"""Batch norm's running averages cover at most this share of the steps so far. With the paper's momentum alone (0.01),
the averages after 190 steps still contain 15 % of their initial values. The weights are trained with batch statistics
and do not depend on this value, unless the defense uses the running averages (``batch_norm=running``) or they decide
which epoch is kept. After 1000 steps, the value has no effect."""


def new_optimiser(ensemble: Ensemble, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser, with L2 on the convolution kernels only."""
    kernels = [p for p in ensemble.parameters() if p.ndim == 4]
    others = [p for p in ensemble.parameters() if p.ndim != 4]
    groups: list[dict[str, Any]] = [{"params": kernels, "weight_decay": recipe.weight_decay}, {"params": others}]
    optimiser: torch.optim.Optimizer
    if recipe.optimiser == "sgd":
        optimiser = torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=0.9, nesterov=True)
    else:
        betas = (0.9, recipe.adam_beta2)
        optimiser = torch.optim.Adam(groups, lr=recipe.learning_rate, betas=betas, eps=recipe.adam_eps)
    average_gradients(optimiser)
    return optimiser


class Pace:
    """Sets the learning rate and batch norm's momentum before each step."""

    def __init__(self, ensemble: Ensemble, recipe: Recipe, batches: int) -> None:
        self.recipe, self.batches = recipe, batches
        norms = [module for module in ensemble.modules() if isinstance(module, _BatchNorm)]
        self.norms = [(norm, norm.momentum) for norm in norms if norm.momentum is not None]

    def set(self, optimiser: torch.optim.Optimizer, epoch: int, batch: int) -> None:
        """Prepare the step on ``batch`` of ``epoch``, both counted from 0."""
        progress = (epoch + batch / self.batches) / self.recipe.epochs
        for group in optimiser.param_groups:
            group["lr"] = self.recipe.learning_rate_at(epoch, progress)
        steps = epoch * self.batches + batch
        for norm, momentum in self.norms:
            norm.momentum = max(momentum, 1 / (1 + REMEMBERED * steps))
