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
from benchmark.attacks.definitions import APGDCE, APGDT, FABT, AutoAttack, Square

_LOGGER = logging.getLogger("auto-attack")


def apgd_ce(model: nn.Module, images: Tensor, labels: Tensor, attack: APGDCE) -> Tensor:
    runner = APGDAttack(model, n_iter=attack.steps, n_restarts=attack.restarts, **_common(images, attack.eps))
    return _run(runner, images, labels)


def apgd_t(model: nn.Module, images: Tensor, labels: Tensor, attack: APGDT) -> Tensor:
    targets = _targets(model, images, attack.targets)
    settings = {**_common(images, attack.eps), "n_iter": attack.steps, "n_target_classes": targets}
    return _run(APGDAttack_targeted(model, **settings), images, labels)


def fab_t(model: nn.Module, images: Tensor, labels: Tensor, attack: FABT) -> Tensor:
    runner = FABAttack_PT(model, n_iter=attack.steps, targeted=True, **_settings(images, attack.eps))
    runner.n_target_classes = _targets(model, images, attack.targets)
    return _run(runner, images, labels)


def square(model: nn.Module, images: Tensor, labels: Tensor, attack: Square) -> Tensor:
    settings = {"n_queries": attack.queries, "p_init": 0.8, "resc_schedule": False}
    with torch.no_grad():
        return _run(SquareAttack(model, **settings, **_settings(images, attack.eps)), images, labels)


def autoattack(model: nn.Module, images: Tensor, labels: Tensor, attack: AutoAttack) -> Tensor:
    """The library's own standard evaluation, on this batch."""
    runner = pyautoattack.autoattack.AutoAttack(model, eps=attack.eps, device=images.device, seed=library_seed())
    classes = count_classes(model, images)
    if classes <= 9:
        runner.apgd_targeted.n_target_classes = runner.fab.n_target_classes = classes - 1
    runner.attacks_to_run = [part for part in runner.attacks_to_run if part not in attack.left_out(classes)]
    with _without_tracing():
        adversarial, _ = runner.run_standard_evaluation(images, labels, batch_size=len(images))
    return adversarial


def _run(runner: Any, images: Tensor, labels: Tensor) -> Tensor:
    return runner.perturb(images, labels)


def _settings(images: Tensor, eps: float) -> dict[str, Any]:
    return {
        "norm": "Linf",
        "eps": eps,
        "seed": library_seed(),
        "device": images.device,
        "verbose": False,
        "n_restarts": 1,
    }


def _common(images: Tensor, eps: float) -> dict[str, Any]:
    """Settings of the two Auto-PGD attacks."""
    settings = {**_settings(images, eps), "eot_iter": 1, "rho": 0.75, "logger": _LOGGER}
    del settings["n_restarts"]
    return settings


def _targets(model: nn.Module, images: Tensor, asked: int) -> int:
    return min(asked, count_classes(model, images) - 1)


@contextmanager
def _without_tracing() -> Iterator[None]:
    """Skip the library's check for models that call autograd: it sets `sys.settrace`, which evicts debuggers
    and coverage. The harness counts the gradients a model takes part in itself."""
    checks = pyautoattack.autoattack.checks
    before = checks.check_dynamic
    checks.check_dynamic = lambda *arguments, **settings: None
    try:
        yield
    finally:
        checks.check_dynamic = before
