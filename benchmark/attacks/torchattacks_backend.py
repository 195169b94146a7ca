"""Attacks run by torchattacks."""

from __future__ import annotations

from typing import Any

import torchattacks
from torch import Tensor, nn

from benchmark.attacks.attacked import count_classes, library_seed
from benchmark.attacks.definitions import APGDCE, APGDT, BIM, CW, EAD, FABT, FGSM, JSMA, MIM, PGD, Square
from defenses.errors import BadInput


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, attack: FGSM) -> Tensor:
    return _run(torchattacks.FGSM(model, eps=attack.eps), images, labels, attack.targeted)


def bim(model: nn.Module, images: Tensor, labels: Tensor, attack: BIM) -> Tensor:
    runner = torchattacks.BIM(model, eps=attack.eps, alpha=attack.eps / attack.steps, steps=attack.steps)
    return _run(runner, images, labels, attack.targeted)


def pgd(model: nn.Module, images: Tensor, labels: Tensor, attack: PGD) -> Tensor:
    attack.refuse_extras("torchattacks")
    runner = torchattacks.PGD(model, eps=attack.eps, alpha=attack.step, steps=attack.steps, random_start=True)
    return _run(runner, images, labels, attack.targeted)


def apgd_ce(model: nn.Module, images: Tensor, labels: Tensor, attack: APGDCE) -> Tensor:
    settings = {"eps": attack.eps, "steps": attack.steps, "n_restarts": attack.restarts, "seed": library_seed()}
    return _run(torchattacks.APGD(model, loss="ce", **settings), images, labels, False)


def apgd_t(model: nn.Module, images: Tensor, labels: Tensor, attack: APGDT) -> Tensor:
    runner = torchattacks.APGDT(model, eps=attack.eps, steps=attack.steps, seed=library_seed())
    runner.target_class, runner.n_target_classes = None, min(attack.targets, count_classes(model, images) - 1)
    return _run(runner, images, labels, False)


def fab_t(model: nn.Module, images: Tensor, labels: Tensor, attack: FABT) -> Tensor:
    settings = {"eps": attack.eps, "steps": attack.steps, "multi_targeted": True, "seed": library_seed()}
    runner = torchattacks.FAB(model, **settings)
    runner.n_target_classes = min(attack.targets, count_classes(model, images) - 1)
    return _run(runner, images, labels, False)


def square(model: nn.Module, images: Tensor, labels: Tensor, attack: Square) -> Tensor:
    settings = {"eps": attack.eps, "n_queries": attack.queries, "resc_schedule": False, "seed": library_seed()}
    return _run(torchattacks.Square(model, **settings), images, labels, False)


def mim(model: nn.Module, images: Tensor, labels: Tensor, attack: MIM) -> Tensor:
    runner = torchattacks.MIFGSM(model, eps=attack.eps, alpha=attack.step, steps=attack.steps, decay=attack.decay)
    return _run(runner, images, labels, attack.targeted)


def cw(model: nn.Module, images: Tensor, labels: Tensor, attack: CW) -> Tensor:
    if not attack.abort_early:
        raise BadInput("cw@torchattacks always stops early; leave abort_early out, or use cw@foolbox")
    runner = torchattacks.CW(model, c=attack.c, kappa=attack.kappa, steps=attack.steps, lr=attack.lr)
    return _run(runner, images, labels, attack.targeted)


def ead(model: nn.Module, images: Tensor, labels: Tensor, attack: EAD) -> Tensor:
    runner = torchattacks.EADEN(
        model,
        kappa=attack.kappa,
        lr=attack.lr,
        binary_search_steps=1,
        max_iterations=attack.steps,
        abort_early=False,
        initial_const=attack.c,
        beta=attack.beta,
    )
    return _run(runner, images, labels, attack.targeted)


def jsma(model: nn.Module, images: Tensor, labels: Tensor, attack: JSMA) -> Tensor:
    """The original attack, two scalars at a time towards the next class: not what the authors ran."""
    following = (labels + 1) % count_classes(model, images)  # by itself, the library takes every model for one of ten
    return _run(torchattacks.JSMA(model, theta=attack.eps, gamma=attack.gamma), images, following, True)


def _run(runner: Any, images: Tensor, labels: Tensor, targeted: bool) -> Tensor:
    if targeted:
        runner.set_mode_targeted_by_label(quiet=True)
    return runner(images, labels)
