"""Attacks run by the Adversarial Robustness Toolbox."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from art.attacks import evasion
from art.estimators.classification import PyTorchClassifier
from torch import Tensor, nn
from torch.nn import functional

from benchmark.attacks.attacked import count_classes
from benchmark.attacks.definitions import APGDCE, BIM, CW, EAD, FGSM, JSMA, MIM, PGD, Square
from benchmark.attacks.library_attacks import LibraryAttack
from defenses.errors import BadInput

NORM_NUMBERS: dict[str, float] = {"linf": np.inf, "l2": 2, "l1": 1}
"""The library's values for the norms."""

KINDS = ("cpu", "cuda")
"""Device types that the library supports."""


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, attack: FGSM) -> Tensor:
    return _run(evasion.FastGradientMethod, model, images, labels, attack.targeted, eps=attack.eps)


def bim(model: nn.Module, images: Tensor, labels: Tensor, attack: BIM) -> Tensor:
    settings = {"eps": attack.eps, "eps_step": attack.eps / attack.steps, "max_iter": attack.steps, "verbose": False}
    return _run(evasion.BasicIterativeMethod, model, images, labels, attack.targeted, **settings)


def pgd(model: nn.Module, images: Tensor, labels: Tensor, attack: PGD) -> Tensor:
    settings = {**_ball(attack), "eps_step": attack.step, "max_iter": attack.steps, "num_random_init": 1}
    runner = evasion.ProjectedGradientDescent
    return _run(runner, model, images, labels, attack.targeted, **settings, verbose=False)


def apgd_ce(model: nn.Module, images: Tensor, labels: Tensor, attack: APGDCE) -> Tensor:
    if getattr(model, "output_kind", "") == "probabilities":
        raise BadInput("apgd-ce@art does not accept probabilities, which tier paper uses; use apgd-ce@pyautoattack")
    settings = {**_ball(attack), "eps_step": 2 * attack.eps, "max_iter": attack.steps, "loss_type": "cross_entropy"}
    runner = evasion.AutoProjectedGradientDescent
    return _run(runner, model, images, labels, False, **settings, nb_random_init=attack.restarts, verbose=False)


def square(model: nn.Module, images: Tensor, labels: Tensor, attack: Square) -> Tensor:
    if min(images.shape[2:]) < 2:  # the library draws a square's position from height − 1 values
        raise BadInput("square@art needs images of 2×2 pixels or more; use square@pyautoattack")
    settings = {**_ball(attack), "max_iter": attack.queries, "p_init": 0.8, "nb_restarts": 1, "verbose": False}
    return _run(evasion.SquareAttack, model, images, labels, None, **settings)


def mim(model: nn.Module, images: Tensor, labels: Tensor, attack: MIM) -> Tensor:
    settings = {"eps": attack.eps, "eps_step": attack.step, "max_iter": attack.steps, "decay": attack.decay}
    return _run(evasion.MomentumIterativeMethod, model, images, labels, attack.targeted, **settings, verbose=False)


def cw(model: nn.Module, images: Tensor, labels: Tensor, attack: CW) -> Tensor:
    if not attack.abort_early:
        raise BadInput("cw@art always stops early; omit abort_early, or use cw@foolbox")
    return _run(evasion.CarliniL2Method, model, images, labels, attack.targeted, **_at_one_constant(attack))


def ead(model: nn.Module, images: Tensor, labels: Tensor, attack: EAD) -> Tensor:
    settings = {**_at_one_constant(attack), "beta": attack.beta, "decision_rule": "EN"}
    return _run(evasion.ElasticNet, model, images, labels, attack.targeted, **settings)


def _at_one_constant(attack: CW | EAD) -> dict[str, Any]:
    """Settings for an optimisation at the constant c, without a search for it."""
    return {
        "confidence": attack.kappa,
        "learning_rate": attack.lr,
        "binary_search_steps": 1,
        "max_iter": attack.steps,
        "initial_const": attack.c,
        "verbose": False,
    }


def jsma(model: nn.Module, images: Tensor, labels: Tensor, attack: JSMA) -> Tensor:
    """The original JSMA: raises two scalars at a time, towards the next class. The authors ran another version."""
    if images[0].numel() < 2:
        raise BadInput("jsma@art changes two scalars at a time, but these images have only one; use jsma@native")
    runner = evasion.SaliencyMapMethod
    classes = count_classes(model, images)
    return _run(
        runner, model, images, (labels + 1) % classes, None, theta=attack.eps, gamma=attack.gamma, verbose=False
    )


def _ball(attack: PGD | APGDCE | Square) -> dict[str, Any]:
    return {"eps": attack.eps, "norm": NORM_NUMBERS[attack.norm]}


def _run(
    runner: Any, model: nn.Module, images: Tensor, labels: Tensor, targeted: bool | None, **settings: Any
) -> Tensor:
    classes = count_classes(model, images)
    if targeted is not None:
        settings["targeted"] = targeted
    attacker = runner(_classifier(model, images, classes), batch_size=len(images), **settings)
    one_hot = functional.one_hot(labels, classes).cpu().numpy()
    adversarial = attacker.generate(images.cpu().numpy().astype(np.float32), y=one_hot)
    return torch.from_numpy(np.asarray(adversarial, dtype=np.float32)).to(images.device)


def _classifier(model: nn.Module, images: Tensor, classes: int) -> PyTorchClassifier:
    """A classifier on the CPU or on the current CUDA device, which the harness sets to the device of the images."""
    kind = images.device.type
    if kind not in KINDS:
        raise BadInput(f"ART runs on the CPU and on CUDA, not on {kind}; use another library, or --device cpu")
    return PyTorchClassifier(
        model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(images.shape[1:]),
        nb_classes=classes,
        clip_values=(0.0, 1.0),
        device_type="cpu" if kind == "cpu" else "gpu",
    )


def run_class(model: nn.Module, images: Tensor, labels: Tensor, attack: LibraryAttack) -> Tensor:
    """Run any evasion class of the library, with the library's parameter names."""
    if attack.callable_name == "ShadowAttack" and len(images) > 1:  # it takes one image at a time
        parts = [run_class(model, one[None], label[None], attack) for one, label in zip(images, labels, strict=True)]
        return torch.cat(parts)
    attack.check_images(images.shape[1])
    target = getattr(evasion, attack.callable_name)
    known = inspect.signature(target.__init__).parameters
    values = {name: value for name, value in attack.settings().items() if name in known}
    if values.get("norm") in NORM_NUMBERS:
        values["norm"] = NORM_NUMBERS[values["norm"]]
    size = 1 if attack.callable_name in ("SimBA", "ZooAttack") else len(images)
    given: dict[str, Any] = {"batch_size": size, "verbose": False, "attacker_params": {"verbose": False}}
    if values.get("attacker") == "fgsm":
        given["attacker_params"] = {}
    values |= {name: value for name, value in given.items() if name in known}
    classes = count_classes(model, images)
    if attack.callable_name in ("SimBA", "VirtualAdversarialMethod"):  # they accept only probabilities
        model = nn.Sequential(model, nn.Softmax(-1)).eval()
    attacker = target(_classifier(model, images, classes), **values)
    one_hot = functional.one_hot(labels, classes).cpu().numpy()
    adversarial = attacker.generate(images.cpu().numpy().astype(np.float32), y=one_hot)
    return torch.from_numpy(np.asarray(adversarial, dtype=np.float32)).to(images.device)
