"""Attacks run by foolbox."""

from __future__ import annotations

from typing import Any

import foolbox
import torch
from torch import Tensor, nn

from benchmark.attacks.definitions import BIM, CW, EAD, FGSM, MIM, PGD


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, attack: FGSM) -> Tensor:
    if attack.targeted:  # its own fast gradient attack refuses targets; one step of BIM is the same
        return bim(model, images, labels, BIM(eps=attack.eps, steps=1, targeted=True))
    runner = foolbox.attacks.LinfFastGradientAttack(random_start=False)
    return _fixed(runner, model, images, labels, attack.eps, attack.targeted)


def bim(model: nn.Module, images: Tensor, labels: Tensor, attack: BIM) -> Tensor:
    runner = foolbox.attacks.LinfBasicIterativeAttack(
        abs_stepsize=attack.eps / attack.steps, steps=attack.steps, random_start=False
    )
    return _fixed(runner, model, images, labels, attack.eps, attack.targeted)


def pgd(model: nn.Module, images: Tensor, labels: Tensor, attack: PGD) -> Tensor:
    attack.refuse_extras("foolbox")
    runner = foolbox.attacks.LinfPGD(abs_stepsize=attack.step, steps=attack.steps, random_start=True)
    return _fixed(runner, model, images, labels, attack.eps, attack.targeted)


def mim(model: nn.Module, images: Tensor, labels: Tensor, attack: MIM) -> Tensor:
    runner = foolbox.attacks.LinfMomentumIterativeFastGradientMethod(
        momentum=attack.decay, abs_stepsize=attack.step, steps=attack.steps, random_start=False
    )
    return _fixed(runner, model, images, labels, attack.eps, attack.targeted)


def cw(model: nn.Module, images: Tensor, labels: Tensor, attack: CW) -> Tensor:
    runner = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=1,
        steps=attack.steps,
        stepsize=attack.lr,
        confidence=attack.kappa,
        initial_const=attack.c,
        abort_early=attack.abort_early,
    )
    return _minimise(runner, model, images, labels, attack.targeted)


def ead(model: nn.Module, images: Tensor, labels: Tensor, attack: EAD) -> Tensor:
    runner = foolbox.attacks.EADAttack(
        binary_search_steps=1,
        steps=attack.steps,
        initial_stepsize=attack.lr,
        confidence=attack.kappa,
        initial_const=attack.c,
        regularization=attack.beta,
        decision_rule="EN",
        abort_early=False,
    )
    return _minimise(runner, model, images, labels, attack.targeted)


def brendel_bethge(model: nn.Module, images: Tensor, labels: Tensor, eps: float, walks: int) -> Tensor:
    """Walk along the decision boundary to the nearest point; images that come within eps, the others as they were."""
    adversarial = images.clone()
    left = torch.arange(len(images), device=images.device)
    for _ in range(walks):
        if not len(left):
            break
        runner = foolbox.attacks.LinfinityBrendelBethgeAttack()
        found = runner.run(_wrap(model, images), images[left], foolbox.criteria.Misclassification(labels[left]))
        near = (found - images[left]).flatten(1).abs().amax(1) <= eps
        adversarial[left[near]] = found[near]
        left = left[~near]
    return adversarial


def _fixed(runner: Any, model: nn.Module, images: Tensor, labels: Tensor, eps: float, targeted: bool) -> Tensor:
    return runner.run(_wrap(model, images), images, _criterion(labels, targeted), epsilon=eps)


def _minimise(runner: Any, model: nn.Module, images: Tensor, labels: Tensor, targeted: bool) -> Tensor:
    found = runner.run(_wrap(model, images), images, _criterion(labels, targeted))
    # foolbox gives a black image where it found nothing; as in the authors' library, that is the clean image
    failed = found.flatten(1).abs().amax(1) == 0
    return found.where(~failed[:, None, None, None], images)


def _wrap(model: nn.Module, images: Tensor) -> foolbox.PyTorchModel:
    return foolbox.PyTorchModel(model, bounds=(0, 1), device=images.device)


def _criterion(labels: Tensor, targeted: bool) -> Any:
    return (
        foolbox.criteria.TargetedMisclassification(labels) if targeted else foolbox.criteria.Misclassification(labels)
    )
