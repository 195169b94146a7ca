"""Balls around an image: random starts, steepest steps, and projection onto ball and box."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.bounds import Bound

HALVINGS = 30
"""Bisections in the search for the shrinkage of a projection: float32 has no more digits."""

FARTHEST = 0.1
"""Largest change of a scalar in one L1 step. Without a limit, a step would move a few scalars through their whole
range, where the gradient no longer describes the network."""


def random_start(model: AttackedModel, images: Tensor, chosen: Tensor, bound: Bound, restart: int) -> Tensor:
    """A point drawn uniformly in the ball around each chosen image, clipped to [0, 1]."""
    clean, eps = images[chosen], bound.radius
    if bound.norm == "linf":
        drawn = model.uniform(chosen, images.shape[1:], restart).to(images)
        return (clean + eps * (2 * drawn - 1)).clamp(0, 1)
    scalars = images[0].numel()
    drawn = model.uniform(chosen, (scalars + 1,), restart).to(images).clamp(1e-7, 1 - 1e-7)
    sign, size = (2 * drawn[:, :-1] - 1).sign(), (2 * drawn[:, :-1] - 1).abs()
    if bound.norm == "l2":  # a normal vector has a uniform direction
        normal = sign * math.sqrt(2) * torch.erfinv(size)
        inside = normal / normal.norm(dim=1, keepdim=True) * drawn[:, -1:] ** (1 / scalars)
    else:  # exponential sizes, divided by the sum of them and of one more
        spacing = -torch.log1p(-size)
        inside = sign * spacing / (spacing.sum(1, keepdim=True) - drawn[:, -1:].log())
    return (clean + eps * inside.view_as(clean)).clamp(0, 1)


def uphill(gradient: Tensor, x: Tensor, bound: Bound, size: float) -> Tensor:
    """The steepest ascent step of the given size in the norm of the bound."""
    if bound.norm == "linf":
        return size * gradient.sign()
    flat = gradient.flatten(1)
    flat = flat / flat.abs().amax(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
    if bound.norm == "l2":
        return (size * flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-12)).view_as(gradient)
    return _sparse(flat, x.flatten(1), size).view_as(gradient)


def _sparse(gradient: Tensor, x: Tensor, size: float) -> Tensor:
    """The L1 step with the largest gain along the gradient; a scalar moves at most `FARTHEST`, and stays in the box.

    The gain is linear and the budget is one sum: the scalars with the largest derivatives move first, each as far as
    possible, until the size is spent.
    """
    room = torch.where(gradient > 0, 1 - x, x).clamp_max(FARTHEST)
    order = gradient.abs().argsort(1, descending=True)
    moves = room.gather(1, order)
    spent = moves.cumsum(1) - moves
    moves = torch.minimum(moves, (size - spent).clamp_min(0))
    return torch.zeros_like(gradient).scatter(1, order, moves) * gradient.sign()


def project(x: Tensor, clean: Tensor, bound: Bound) -> Tensor:
    """The nearest point that is in the ball around the clean image and in [0, 1]."""
    if bound.norm == "linf":
        return torch.minimum(torch.maximum(x, clean - bound.radius), clean + bound.radius).clamp(0, 1)
    return nearest(x, clean, "l2" if bound.norm == "l2" else "l1", bound.radius)


def nearest(x: Tensor, clean: Tensor, norm: Literal["l2", "l1"], radius: Tensor | float) -> Tensor:
    """The nearest point in an L2 or L1 ball and in [0, 1]; ``radius`` is a number, or a column with one per image.

    In L2 the nearest point is the difference times a factor, and in L1 the difference with every entry shrunk by a
    threshold, each clipped to the box. The norm of this point falls as the factor falls or the threshold rises, so
    bisection finds where it equals the radius.
    """
    order = 2 if norm == "l2" else 1
    difference, low, high = (x - clean).flatten(1), -clean.flatten(1), 1 - clean.flatten(1)
    widest = difference.abs().amax(1, keepdim=True)

    def shrunk(share: Tensor) -> Tensor:
        if norm == "l2":
            point = difference * (1 - share)
        else:
            point = difference.sign() * (difference.abs() - share * widest).clamp_min(0)
        return torch.minimum(torch.maximum(point, low), high)

    too_little, enough = torch.zeros_like(widest), torch.ones_like(widest)
    outside = shrunk(too_little).norm(order, dim=1, keepdim=True) > radius
    for _ in range(HALVINGS):
        middle = (too_little + enough) / 2
        further = shrunk(middle).norm(order, dim=1, keepdim=True) > radius
        too_little, enough = torch.where(further, middle, too_little), torch.where(further, enough, middle)
    point = shrunk(torch.where(outside, enough, torch.zeros_like(enough)))
    return (clean + point.view_as(clean)).clamp(0, 1)
