"""An attack that fools the ensemble and the diversity detector behind it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.definitions import Evasive
from benchmark.attacks.native.balls import project
from defenses.errors import BadInput
from defenses.members.diversity import log_ensemble_diversity


def evasive(model: nn.Module, images: Tensor, labels: Tensor, attack: Evasive) -> Tensor:
    """Ascend cross-entropy plus ``weight`` times the log diversity with the predicted label removed.

    The detector flags images with low diversity, so an adversarial image with high diversity is not detected.
    """
    assert isinstance(model, AttackedModel)
    step = 2.5 * attack.eps / attack.steps
    adversarial = (images + torch.empty_like(images).uniform_(-attack.eps, attack.eps)).clamp(0, 1)
    for _ in range(attack.steps):
        adversarial.requires_grad_()
        logits = model.member_logits(adversarial)
        if len(logits) < 2:
            raise BadInput(
                "this attack needs the members of an ensemble; give a defenses.Ensemble with 2 or more members"
            )
        log_probability = model.combination.combine(logits)
        diversity = log_ensemble_diversity(logits, log_probability.argmax(-1))
        # equals nll_loss, but the gradient keeps its signs where a probability rounds to 1
        loss = functional.cross_entropy(log_probability, labels, reduction="sum") + attack.weight * diversity.sum()
        (gradient,) = torch.autograd.grad(loss, adversarial)
        moved = adversarial.detach() + step * gradient.sign()
        adversarial = project(moved, images, attack.bound)
    return adversarial
