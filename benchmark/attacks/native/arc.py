"""ARC: an attack on randomised ensembles that attacks the members one after another.

The expected accuracy of a randomised ensemble falls in jumps, one for each fooled member. The gradient of an averaged
loss may point to images that fool no member. ARC instead crosses the boundary of one member at a time, by the smallest
step for the linearised member. It takes no step that makes a correct prediction more likely.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.bounds import Bound
from benchmark.attacks.definitions import ARC
from benchmark.attacks.native.balls import project, random_start, uphill

OVERSHOOT = 0.02
"""Relative excess of a step over the linearised distance: on the boundary itself, the prediction is undecided."""
SHORT = 0.1
"""Step size, in units of the radius, if the linearised boundary is out of reach."""
HALVINGS = 20
"""Bisections in the search for a step that crosses the boundary although ball and box cut it."""
ROUNDING = 1e-6
"""Largest difference between two sums of the same probabilities."""
ROUNDS = 1000
"""More rounds than any attack has, so that different starts use different draws."""


def arc(model: nn.Module, images: Tensor, labels: Tensor, attack: ARC) -> Tensor:
    """Walk from the clean image, then from random points; keep the point with the lowest expected accuracy."""
    assert isinstance(model, AttackedModel)
    best = images.clone()
    lowest = model.expected(_right(model, images, labels))
    for restart in range(attack.restarts):
        left = torch.nonzero(lowest > 0).flatten()
        if not len(left):
            break
        start = random_start(model, images, left, attack.bound, restart) if restart else images[left]
        x, expected = _walk(model, images[left], start, labels[left], left, restart, attack)
        better = expected <= lowest[left] + ROUNDING
        best[left[better]], lowest[left[better]] = x[better], expected[better]
    return best


def _walk(
    model: AttackedModel, clean: Tensor, start: Tensor, labels: Tensor, places: Tensor, restart: int, attack: ARC
) -> tuple[Tensor, Tensor]:
    """Attack every member in random order, for several rounds; return the last point and its expected accuracy."""
    x = start.clone()
    right = _right(model, x, labels)
    for number in range(attack.steps):
        expected = model.expected(right)
        running = torch.nonzero(expected > 0).flatten()
        if not len(running):
            break
        key = (restart + 1) * ROUNDS + number
        order = model.uniform(places[running], (len(right),), key).argsort(1).to(running)
        for turn in range(len(right)):
            member = order[:, turn]
            todo = right[member, running]  # a member that is already fooled needs no step
            rows, own = running[todo], member[todo]
            if not len(rows):
                continue
            before = right[:, rows]
            normal, margin = _nearest_boundary(model, x[rows], labels[rows], own, attack)
            moved = step_over(x[rows], clean[rows], normal, normal, margin, attack.bound)
            after = _right(model, moved, labels[rows])
            lost = torch.nonzero((~before & after).any(0)).flatten()  # a member that was fooled is right again
            if len(lost):
                here, around, classes = x[rows[lost]], clean[rows[lost]], labels[rows[lost]]
                away = _away(model, here, classes, ~before[:, lost])
                way = _scaled(normal[lost], attack.bound) + _scaled(away, attack.bound)
                careful = step_over(here, around, normal[lost], way, margin[lost], attack.bound)
                again = _right(model, careful, classes)
                use = model.expected(again) <= model.expected(after[:, lost]) + ROUNDING
                moved[lost[use]], after[:, lost[use]] = careful[use], again[:, use]
            kept = model.expected(after) <= model.expected(before) + ROUNDING
            x[rows[kept]], right[:, rows[kept]] = moved[kept], after[:, kept]
    return x, model.expected(right)


def _nearest_boundary(
    model: AttackedModel, x: Tensor, labels: Tensor, member: Tensor, attack: ARC
) -> tuple[Tensor, Tensor]:
    """Normal and margin of the nearest linearised boundary of one member per image."""
    point = x.detach().requires_grad_()
    rows = torch.arange(len(x), device=x.device)
    logits = model.logits_of(member, point)
    others = logits.detach().scatter(-1, labels[:, None], -float("inf")).argsort(-1, descending=True)
    nearest = x.new_full((len(x),), float("inf"))
    margin, normal = torch.zeros_like(nearest), torch.zeros_like(x)
    for rank in range(min(attack.targets, logits.shape[-1] - 1)):
        gap = logits[rows, labels] - logits[rows, others[:, rank]]
        (gradient,) = torch.autograd.grad(gap.sum(), point, retain_graph=True)
        distance = gap.detach() / dual_norm(gradient, attack.bound)
        closer = distance < nearest
        nearest, margin = torch.where(closer, distance, nearest), torch.where(closer, gap.detach(), margin)
        normal[closer] = -gradient[closer]
    return normal, margin


def _away(model: AttackedModel, x: Tensor, labels: Tensor, fooled: Tensor) -> Tensor:
    """The direction away from the boundaries of the fooled members, a mask (K, N), without those never drawn."""
    point = x.detach().requires_grad_()
    every = model.member_logits(point)
    rows = torch.arange(len(x), device=x.device)
    lead = every.scatter(-1, labels.expand(len(every), -1)[..., None], -float("inf")).amax(-1) - every[:, rows, labels]
    (away,) = torch.autograd.grad((lead * (fooled & _drawn(model, every))).sum(), point)
    return away


def _scaled(gradient: Tensor, bound: Bound) -> Tensor:
    return gradient / dual_norm(gradient, bound)[:, None, None, None]


def step_over(x: Tensor, clean: Tensor, normal: Tensor, way: Tensor, margin: Tensor, bound: Bound) -> Tensor:
    """The smallest step, steepest along ``way``, after which normal · step exceeds the margin.

    If ball and box do not cut the step, and ``way`` is the normal, its size is margin / dual norm of the normal, plus
    `OVERSHOOT`. If they cut it, a longer step is searched. If no step crosses the boundary, a short step is taken.
    """
    unit = uphill(way, x, bound, 1.0)
    needed = (1 + OVERSHOOT) * margin

    def moved(size: Tensor) -> Tensor:
        return project(x + size[:, None, None, None] * unit, clean, bound)

    def gain(size: Tensor) -> Tensor:
        return (normal * (moved(size) - x)).flatten(1).sum(1)

    largest = torch.full_like(margin, 2 * bound.radius)
    rate = (normal * unit).flatten(1).sum(1)
    free = torch.where(rate > 0, needed / rate, largest).minimum(largest)
    short, enough = free.clone(), largest.clone()
    for _ in range(HALVINGS):
        middle = (short + enough) / 2
        crosses = gain(middle) >= needed
        short, enough = torch.where(crosses, short, middle), torch.where(crosses, middle, enough)
    rounding = 1e-5 * needed.abs()  # of a step that is not cut
    size = torch.where(gain(free) >= needed - rounding, free, enough)
    return moved(torch.where(gain(largest) >= needed, size, SHORT * bound.radius))


def dual_norm(gradient: Tensor, bound: Bound) -> Tensor:
    """The dual norm of the gradient for the bound's norm: L1 for L∞, L2 for L2."""
    found = gradient.flatten(1).norm(1 if bound.norm == "linf" else 2, dim=1)
    return found.clamp_min(torch.finfo(found.dtype).tiny)


@torch.no_grad()
def _right(model: AttackedModel, x: Tensor, labels: Tensor) -> Tensor:
    """Mask of the members that are right, (K, N); a member that is never drawn counts as wrong."""
    every = model.member_logits(x)
    return (every.argmax(-1) == labels) & _drawn(model, every)


def _drawn(model: AttackedModel, every: Tensor) -> Tensor:
    """Mask (K, 1) of the members that can be drawn; every member, unless its probability is 0."""
    return (model.weights(len(every)) > 0).to(every.device)[:, None]
