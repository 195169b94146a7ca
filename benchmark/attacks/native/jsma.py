"""JSMA as ADP's authors ran it: one scalar at a time, downwards, in batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmark.attacks.definitions import JSMA


def jsma(model: nn.Module, images: Tensor, labels: Tensor, attack: JSMA) -> Tensor:
    """In each step, lower the one scalar whose decrease reduces the probability of the label most.

    Probabilities sum to one, so ∂p_y/∂x_i > 0 implies that the other classes' sum falls as x_i rises: the saliency
    map of the paper is then (∂p_y/∂x_i)², largest where ∂p_y/∂x_i is. All images of a batch move together, one
    gradient per step. A scalar may be chosen again. If the chosen scalar is already 0, the image is finished. As in the
    authors' code, a scalar at 1 is never chosen.
    """
    adversarial = images.clone(memory_format=torch.contiguous_format)  # flatten below must be a view
    left = torch.arange(len(images), device=images.device)
    for _ in range(attack.gradients(images[0].numel(), classes=0)):
        point = adversarial[left].requires_grad_()
        probability = torch.softmax(model(point), dim=-1).gather(-1, labels[left, None])
        (gradient,) = torch.autograd.grad(probability.sum(), point)
        flat = adversarial.flatten(1)
        chosen = gradient.flatten(1).masked_fill(flat[left] >= 1, -torch.inf).argmax(1)
        before = flat[left, chosen]
        flat[left, chosen] = (before - attack.eps).clamp_min(0.0)
        left = left[before > 0]  # it was 0 already: every later step would choose the same scalar
        if not len(left):
            break
    return adversarial
