"""Attacks run by torchattacks."""

from __future__ import annotations

from typing import Any

import torchattacks
from torch import Tensor, nn

from benchmark.attacks.definitions import BIM, CW, EAD, FGSM, JSMA, MIM, PGD
from defenses.errors import BadInput


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, attack: FGSM) -> Tensor:
    return _run(torchattacks.FGSM(model, eps=attack.eps), images, labels, attack.targeted)


def bim(model: nn.Module, images: Tensor, labels: Tensor, attack: BIM) -> Tensor:
    runner = torchattacks.BIM(model, eps=attack.eps, alpha=attack.eps / attack.steps, steps=attack.steps)
    return _run(runner, images, labels, attack.targeted)


def pgd(model: nn.Module, images: Tensor, labels: Tensor, attack: PGD) -> Tensor:
    runner = torchattacks.PGD(model, eps=attack.eps, alpha=attack.step, steps=attack.steps, random_start=True)
    return _run(runner, images, labels, attack.targeted)


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
    return _run(torchattacks.JSMA(model, theta=attack.eps, gamma=attack.gamma), images, labels, False)


def _run(runner: Any, images: Tensor, labels: Tensor, targeted: bool) -> Tensor:
    if targeted:
        runner.set_mode_targeted_by_label(quiet=True)
    return runner(images, labels)
