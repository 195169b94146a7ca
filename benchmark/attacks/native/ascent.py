"""PGD with restarts and a choice of loss; a fooled image costs no further gradients.

Starts are drawn per image, so the result of an image does not depend on the other images of its batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.definitions import PGD
from benchmark.attacks.native.balls import project, random_start, uphill
from benchmark.attacks.native.losses import LOSSES, Loss


def pgd(model: nn.Module, images: Tensor, labels: Tensor, attack: PGD) -> Tensor:
    """Restart on images that are not fooled yet; keep the first iterate that fools, or else the last one.

    On a randomised model, an ascent takes all its steps and its last iterate counts. If the expected accuracy can be
    computed from the members, an untargeted attack keeps the start with the lowest one.
    """
    adversarial = images.clone()
    restarted(model, images, labels, attack, adversarial, torch.arange(len(images), device=images.device))
    return adversarial


def restarted(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    attack: PGD,
    adversarial: Tensor,
    survivors: Tensor,
    first: int = 0,
) -> Tensor:
    """Attack the rows ``survivors``, change them in ``adversarial``, and return the new survivors.

    ``first`` is the number of the first start.
    """
    assert isinstance(model, AttackedModel)
    lowest = torch.full((len(images),), torch.inf, device=images.device)
    if first and model.combination.randomised and not attack.targeted:  # earlier starts left their best images
        lowest[survivors] = model.probability_right(adversarial[survivors], labels[survivors])
    for restart in range(first, first + attack.restarts):
        if not len(survivors):
            break
        x = random_start(model, images, survivors, attack.bound, restart)
        x, fooled = _ascend(model, images[survivors], x, labels[survivors], attack)
        better = torch.ones_like(fooled)
        if model.combination.randomised and not attack.targeted:  # fooled here means that every member is wrong
            right = model.probability_right(x, labels[survivors])
            better, fooled = right < lowest[survivors], right == 0
            lowest[survivors] = torch.minimum(lowest[survivors], right)
        adversarial[survivors[better]] = x[better]
        survivors = survivors[~fooled]
    return survivors


def _ascend(model: AttackedModel, clean: Tensor, start: Tensor, labels: Tensor, attack: PGD) -> tuple[Tensor, Tensor]:
    loss, sign = LOSSES[attack.loss], -1 if attack.targeted else 1
    x = start.clone()
    fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    running = torch.arange(len(x), device=x.device)
    for _ in range(attack.steps):
        gradient, hit = gradient_of(model, x[running], labels[running], loss, attack.targeted)
        if not model.randomised:  # otherwise, more steps may make an error more likely
            fooled[running[hit]] = True
            running, gradient = running[~hit], gradient[~hit]
        if not len(running):
            return x, fooled
        here = x[running]
        moved = here + uphill(sign * gradient, here, attack.bound, attack.step)
        x[running] = project(moved, clean[running], attack.bound)
    with torch.no_grad():
        fooled[running] = (model(x[running]).argmax(-1) == labels[running]) == attack.targeted
    return x, fooled


def gradient_of(model: nn.Module, x: Tensor, labels: Tensor, loss: Loss, targeted: bool) -> tuple[Tensor, Tensor]:
    """Gradient of the loss with respect to the images, and a mask of the images that are already fooled."""
    x = x.detach().requires_grad_()
    logits = model(x)
    (gradient,) = torch.autograd.grad(loss(logits, labels).sum(), x)
    return gradient, (logits.detach().argmax(-1) == labels) == targeted
