"""The members' input gradients, differentiable again, for the objectives GAL and TRS."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from defenses.members.batch_norm import fast_second_derivative
from defenses.members.diversity import without_label
from defenses.members.ensemble import Ensemble


def loss_gradients(ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Member logits (K, N, L), and g_k = ∇_x CE_k per pixel in [0, 1] (K, N, D), both differentiable again.

    The cross-entropy is computed as softplus(logsumexp of the other logits − z_y). For very confident predictions,
    softmax − one-hot rounds to zero, but the gradient of this form keeps its direction.
    """
    if not images.requires_grad:
        images = images.detach().requires_grad_()
    inputs = ensemble.normalise(images)
    every, gradients = [], []
    for member in ensemble.members:  # not from stacked logits: each gradient would pass through all members
        with fast_second_derivative():
            logits = ensemble.logits_of(member, inputs)
        true = logits.gather(-1, labels[:, None]).squeeze(-1)
        loss = functional.softplus(without_label(logits[None], labels)[0].logsumexp(-1) - true)
        gradients.append(torch.autograd.grad(loss.sum(), images, create_graph=True)[0].flatten(1))
        every.append(logits)
    return torch.stack(every), torch.stack(gradients)


def gradient_cosines(gradients: Tensor) -> Tensor:
    """Cosine of every pair of members on every image, (K(K−1)/2, N); 0 where a gradient is 0."""
    largest = gradients.detach().abs().amax(-1, keepdim=True)
    alive = largest > 1e-30
    scaled = gradients / torch.where(alive, largest, 1.0)  # the norm is at least 1: no square underflows
    square = scaled.square().sum(-1, keepdim=True)
    unit = scaled / torch.where(alive, square, 1.0).sqrt()
    first, second = torch.triu_indices(len(gradients), len(gradients), offset=1, device=gradients.device)
    return (unit[first] * unit[second]).sum(-1)


def steepest(ensemble: Ensemble, images: Tensor, labels: Tensor, delta: float, steps: int) -> Tensor:
    """Images, changed within ±delta and [0, 1] by sign ascent on the gradient norm of the members' losses."""
    moved = images
    for _ in range(steps):
        moved = moved.detach().requires_grad_()
        slope = loss_gradients(ensemble, moved, labels)[1].square().sum()
        (uphill,) = torch.autograd.grad(slope, moved)
        moved = moved.detach() + 2 * delta / steps * uphill.sign()
        moved = (images + (moved - images).clamp(-delta, delta)).clamp(0, 1)
    return moved.detach()
