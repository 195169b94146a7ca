"""Reference AutoAttack and its parts, run by pyautoattack with the reference's settings."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyautoattack.autoattack
import torch
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from pyautoattack.fab_pt import FABAttack_PT
from pyautoattack.square import SquareAttack
from torch import Tensor, nn

from benchmark.attacks.attacked import count_classes, library_seed
from benchmark.attacks.definitions import APGD, APGDCE, APGDT, FABT, AutoAttack, Square
from benchmark.attacks.native.losses import LOSSES

NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}
"""The library's names for the norms."""
LARGER = (3, 2, 1)
"""Radii of L1 Auto-PGD, in units of the bound's radius; each needs at least one step."""
_LOGGER = logging.getLogger("auto-attack")


def apgd_ce(model: nn.Module, images: Tensor, labels: Tensor, attack: APGDCE) -> Tensor:
    runner = APGDAttack(
        _NoPrediction(model), n_iter=attack.steps, n_restarts=attack.restarts, **_common(images, attack)
    )
    return _run(runner, images, labels)


def apgd(model: nn.Module, images: Tensor, labels: Tensor, attack: APGD) -> Tensor:
    """The library knows two losses by name, ``ce`` and ``dlr``; any other loss replaces its DLR."""
    runner = APGDAttack(
        _NoPrediction(model),
        n_iter=attack.steps,
        n_restarts=attack.restarts,
        loss="ce" if attack.loss == "ce" else "dlr",
        **_common(images, attack),
    )
    if attack.loss in ("margin", "pma"):
        runner.dlr_loss = LOSSES[attack.loss]
    return _run(runner, images, labels)


def apgd_t(model: nn.Module, images: Tensor, labels: Tensor, attack: APGDT) -> Tensor:
    targets = _targets(model, images, attack.targets)
    settings = {**_common(images, attack), "n_iter": attack.steps, "n_target_classes": targets}
    return _run(APGDAttack_targeted(_NoPrediction(model), **settings), images, labels)


def fab_t(model: nn.Module, images: Tensor, labels: Tensor, attack: FABT) -> Tensor:
    runner = FABAttack_PT(_NoPrediction(model), n_iter=attack.steps, targeted=True, **_settings(images, attack))
    runner.n_target_classes = _targets(model, images, attack.targets)
    return _run(runner, images, labels)


def square(model: nn.Module, images: Tensor, labels: Tensor, attack: Square) -> Tensor:
    settings = {"n_queries": attack.queries, "p_init": 0.8, "resc_schedule": False}
    with torch.no_grad():
        return _run(SquareAttack(_NoPrediction(model), **settings, **_settings(images, attack)), images, labels)


def autoattack(model: nn.Module, images: Tensor, labels: Tensor, attack: AutoAttack) -> Tensor:
    """The library's own evaluation, in the requested version, on this batch."""
    told = _NoPrediction(model)
    ball: dict[str, Any] = {"eps": attack.eps, "norm": NORMS[attack.norm]}
    settings: dict[str, Any] = {**ball, "version": attack.version, "seed": library_seed()}
    runner = pyautoattack.autoattack.AutoAttack(told, **settings, device=images.device)
    classes = count_classes(model, images)
    for part in (runner.apgd_targeted, runner.fab):
        part.n_target_classes = min(part.n_target_classes, classes - 1)
    runner.attacks_to_run = [part for part in runner.attacks_to_run if part not in attack.left_out(classes)]
    with _without_tracing():
        adversarial, _ = runner.run_standard_evaluation(images, labels, batch_size=len(images))
    return adversarial


class _NoPrediction(nn.Module):
    """A model with one more class, which is predicted for rows with NaN: the library would predict class 0 for them.

    Without NaN, the output is exactly the output of the model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        output = self.model(images)
        undefined = output.isnan().any(-1, keepdim=True)
        if not undefined.any():
            return output
        lowest = output.nan_to_num().amin(-1, keepdim=True) - 100
        return torch.cat([output.masked_fill(undefined, 0), torch.where(undefined, 1, lowest)], -1)


def _run(runner: Any, images: Tensor, labels: Tensor) -> Tensor:
    return runner.perturb(images, labels)


def _settings(images: Tensor, attack: APGD | APGDCE | APGDT | FABT | Square) -> dict[str, Any]:
    return {
        "norm": NORMS[attack.norm],
        "eps": attack.eps,
        "seed": library_seed(),
        "device": images.device,
        "verbose": False,
        "n_restarts": 1,
    }


def _common(images: Tensor, attack: APGD | APGDCE | APGDT) -> dict[str, Any]:
    """Settings of the Auto-PGD attacks; in L1 the reference starts in balls of 3 and 2 times the radius."""
    settings = {**_settings(images, attack), "eot_iter": 1, "rho": 0.75, "logger": _LOGGER}
    del settings["n_restarts"]
    return settings | {"use_largereps": attack.norm == "l1" and attack.steps >= len(LARGER)}


def _targets(model: nn.Module, images: Tensor, asked: int) -> int:
    return min(asked, count_classes(model, images) - 1)


@contextmanager
def _without_tracing() -> Iterator[None]:
    """Skip the library's check for models that call autograd: it sets `sys.settrace`, which disables
    debuggers and coverage. The harness itself counts gradients."""
    checks = pyautoattack.autoattack.checks
    before = checks.check_dynamic
    checks.check_dynamic = lambda *arguments, **settings: None
    try:
        yield
    finally:
        checks.check_dynamic = before
