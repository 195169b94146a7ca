"""Attacks run by torchattacks."""

from __future__ import annotations

import contextlib
import inspect
import io
from typing import Any

import torchattacks
from torch import Tensor, nn

from benchmark.attacks.attacked import count_classes, library_seed
from benchmark.attacks.definitions import APGDCE, APGDT, BIM, CW, EAD, FABT, FGSM, JSMA, MIM, PGD, Square
from benchmark.attacks.library_attacks import LibraryAttack
from defenses.errors import BadInput

NORM_NAMES = {"linf": "Linf", "l2": "L2", "l1": "L1"}
"""The library's names for the norms."""


class ContiguousGradient(nn.Module):
    """The model with contiguous gradients, because the library flattens them with ``view``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()  # otherwise the library puts the model into training mode afterwards

    def forward(self, images: Tensor) -> Tensor:
        seen = images.clone()
        if seen.requires_grad:
            seen.register_hook(lambda gradient: gradient.contiguous())
        output: Tensor = self.model(seen)
        return output


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, attack: FGSM) -> Tensor:
    return _run(torchattacks.FGSM(model, eps=attack.eps), images, labels, attack.targeted)


def bim(model: nn.Module, images: Tensor, labels: Tensor, attack: BIM) -> Tensor:
    runner = torchattacks.BIM(model, eps=attack.eps, alpha=attack.eps / attack.steps, steps=attack.steps)
    return _run(runner, images, labels, attack.targeted)


def pgd(model: nn.Module, images: Tensor, labels: Tensor, attack: PGD) -> Tensor:
    if attack.norm == "l2":
        kind, model = torchattacks.PGDL2, ContiguousGradient(model)
    else:
        kind = torchattacks.PGD
    runner = kind(model, eps=attack.eps, alpha=attack.step, steps=attack.steps, random_start=True)
    return _run(runner, images, labels, attack.targeted)


def apgd_ce(model: nn.Module, images: Tensor, labels: Tensor, attack: APGDCE) -> Tensor:
    settings = {"steps": attack.steps, "n_restarts": attack.restarts, "seed": library_seed()}
    return _run(torchattacks.APGD(model, loss="ce", **_ball(attack), **settings), images, labels, False)


def apgd_t(model: nn.Module, images: Tensor, labels: Tensor, attack: APGDT) -> Tensor:
    runner = torchattacks.APGDT(model, **_ball(attack), steps=attack.steps, seed=library_seed())
    runner.target_class, runner.n_target_classes = None, min(attack.targets, count_classes(model, images) - 1)
    return _run(runner, images, labels, False)


def fab_t(model: nn.Module, images: Tensor, labels: Tensor, attack: FABT) -> Tensor:
    settings = {"steps": attack.steps, "multi_targeted": True, "seed": library_seed()}
    runner = torchattacks.FAB(model, **_ball(attack), **settings)
    runner.n_target_classes = min(attack.targets, count_classes(model, images) - 1)
    return _run(runner, images, labels, False)


def square(model: nn.Module, images: Tensor, labels: Tensor, attack: Square) -> Tensor:
    settings = {"n_queries": attack.queries, "resc_schedule": False, "seed": library_seed()}
    return _run(torchattacks.Square(model, **_ball(attack), **settings), images, labels, False)


def mim(model: nn.Module, images: Tensor, labels: Tensor, attack: MIM) -> Tensor:
    runner = torchattacks.MIFGSM(model, eps=attack.eps, alpha=attack.step, steps=attack.steps, decay=attack.decay)
    return _run(runner, images, labels, attack.targeted)


def cw(model: nn.Module, images: Tensor, labels: Tensor, attack: CW) -> Tensor:
    if not attack.abort_early:
        raise BadInput("cw@torchattacks always stops early; omit abort_early, or use cw@foolbox")
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
    """The original JSMA: raises two scalars at a time, towards the next class. The authors ran another version."""
    following = (labels + 1) % count_classes(model, images)  # by default, the library assumes ten classes
    return _run(torchattacks.JSMA(model, theta=attack.eps, gamma=attack.gamma), images, following, True)


def _ball(attack: APGDCE | APGDT | FABT | Square) -> dict[str, Any]:
    return {"eps": attack.eps, "norm": NORM_NAMES[attack.norm]}


def _run(runner: Any, images: Tensor, labels: Tensor, targeted: bool) -> Tensor:
    if targeted:
        runner.set_mode_targeted_by_label(quiet=True)
    return runner(images, labels)


def run_class(model: nn.Module, images: Tensor, labels: Tensor, attack: LibraryAttack) -> Tensor:
    """Run any class of the library, with the library's parameter names."""
    attack.check_images(images.shape[1])
    target = getattr(torchattacks, attack.callable_name)
    values = attack.settings()
    targeted = bool(values.pop("targeted", False))
    if values.get("norm") in NORM_NAMES:
        values["norm"] = NORM_NAMES[values["norm"]]
    known = inspect.signature(target).parameters
    classes = count_classes(model, images)
    values |= {name: value for name, value in {"seed": library_seed(), "n_classes": classes}.items() if name in known}
    with contextlib.redirect_stdout(io.StringIO()):  # the library prints a message if it finds no device
        runner = target(model, **values)
        runner.set_device(images.device)
    if attack.callable_name == "JSMA" and not targeted:  # by default, the library assumes ten classes
        labels, targeted = (labels + 1) % classes, True
    return _run(runner, images, labels, targeted)
