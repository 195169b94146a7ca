"""JSMA as ADP's authors ran it: one scalar at a time, downwards, in batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmark.attacks.definitions import JSMA


def jsma(model: nn.Module, images: Tensor, labels: Tensor, attack: JSMA) -> Tensor:
    """Lower, step after step, the one scalar whose fall costs the label most probability.

    Probabilities sum to one, so ∂p_y/∂x_i > 0 implies that the other classes' sum falls with x_i: the saliency
    map of the paper is then (∂p_y/∂x_i)², largest where ∂p_y/∂x_i is. All images of a batch move together, one
    gradient per step. A scalar may be taken again; one that is at 0 already stays there. As in the authors' code,
    a scalar at 1 is never taken.
    """
    adversarial = images.clone(memory_format=torch.contiguous_format)  # flatten below must be a view
    rows = torch.arange(len(images), device=images.device)
    for _ in range(attack.gradients(images[0].numel(), classes=0)):
        adversarial.requires_grad_()
        probability = torch.softmax(model(adversarial), dim=-1).gather(-1, labels[:, None])
        (gradient,) = torch.autograd.grad(probability.sum(), adversarial)
        adversarial = adversarial.detach()
        flat = adversarial.flatten(1)
        chosen = gradient.flatten(1).masked_fill(flat >= 1, -torch.inf).argmax(1)
        flat[rows, chosen] = (flat[rows, chosen] - attack.eps).clamp_min(0.0)
    return adversarial
