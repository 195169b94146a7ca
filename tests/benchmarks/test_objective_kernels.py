"""Objective kernels: forward and backward of the loss alone, from logits, as members and classes grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from defenses.catalogue import parse_defense
from defenses.objectives import total


@pytest.mark.parametrize(("members", "classes"), [(3, 10), (5, 10), (3, 100), (20, 100), (20, 1000)])
def test_objective(race: Any, note: Any, members: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(members, 64, classes, generator=generator).requires_grad_()
    labels = torch.randint(classes, (64,), generator=generator)

    def loss(defense: str) -> Callable[[], object]:
        chosen = parse_defense(defense).defense
        return lambda: torch.autograd.grad(total(chosen.objective(logits, labels)), logits)

    case = f"K={members}, L={classes}, 64 images"
    found = race(case, {"adp": loss("adp-2-0.5"), "ece": loss("baseline")}, rounds=30, best=True)
    note(case, "adp adds", 1000 * (found["adp"] - found["ece"]), "ms per step")
