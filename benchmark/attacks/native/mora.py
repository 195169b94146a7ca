"""MORA: an attack for ensembles, which uses the members' gradients where the averaged output hides them.

An average of softmax outputs saturates when one confident member dominates it. Its gradient is then the small gradient
of that member alone. MORA mixes the averaged output with the members' logits. Each member is scaled to a gap of at most
10, and weighted by its leverage on the decision.

There are two variants. ``derived``: each member is scaled by its own gap, and weighted by its part in
∂ log p̄_y / ∂z_k. ``reference`` follows the authors' public code, as far as it is known: all members share one factor,
that of the largest gap; the ensemble's output is one more member; a weight is the leverage on the runner-up class, at a
temperature of 0.2; the first step has full size; and a targeted ascent uses the cross-entropy of the ensemble as its
loss.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.definitions import MORA
from benchmark.attacks.native.balls import project, random_start, uphill
from defenses.members.combination import Combination, Votes, parse_combination
from defenses.members.diversity import log_mean_probability

GAP = 10.0
"""Largest gap between the two best logits of a member; a member with a larger gap is scaled down."""
MOMENTUM = 0.75
"""Weight of the new step; the previous step has the remaining weight."""
TEMPERATURE = 0.2
"""Divides the logits when the variant ``reference`` weights the members."""


def mora(model: nn.Module, images: Tensor, labels: Tensor, attack: MORA) -> Tensor:
    """One untargeted ascent per mix, then one towards each target class; each ascent gets only the survivors.

    An image survives until no member that can be drawn is right. For other ensembles: until the prediction is wrong.
    """
    assert isinstance(model, AttackedModel)
    with torch.no_grad():
        order = model(images).scatter(-1, labels[:, None], -float("inf")).argsort(-1, descending=True)
    runs: list[tuple[float, int | None]] = [(mix, None) for mix in attack.mixes]
    runs += [(attack.mixes[0], rank) for rank in range(min(attack.targets, order.shape[-1] - 1))]
    adversarial = images.clone()
    lowest = torch.full((len(images),), torch.inf, device=images.device)
    survivors = torch.arange(len(images), device=images.device)
    for number, (mix, rank) in enumerate(runs):
        if not len(survivors):
            break
        start = random_start(model, images, survivors, attack.bound, number)
        targets = None if rank is None else order[survivors, rank]
        x, right = _ascend(model, images[survivors], start, labels[survivors], targets, mix, attack)
        better = right <= lowest[survivors]
        adversarial[survivors[better]], lowest[survivors[better]] = x[better], right[better]
        survivors = survivors[right > 0]
    return adversarial


def _ascend(
    model: AttackedModel, clean: Tensor, start: Tensor, labels: Tensor, targets: Tensor | None, mix: float, attack: MORA
) -> tuple[Tensor, Tensor]:
    """The last of the iterates with the lowest probability of a correct prediction, and this probability."""
    rule = model.combination if attack.average == "ensemble" else parse_combination(attack.average)
    x, previous, best = start.clone(), start.clone(), start.clone()
    lowest = torch.full((len(x),), torch.inf, device=x.device)

    def note(rows: Tensor, members: Tensor) -> Tensor:
        """Remember the iterates that are better; return the mask of the images that are still right."""
        right = probability_right(model, members, rule, labels[rows])
        better = rows[right <= lowest[rows]]
        best[better], lowest[rows] = x[better], torch.minimum(lowest[rows], right)
        return right > 0

    running = torch.arange(len(x), device=x.device)
    for step in range(attack.steps):
        point = x[running].requires_grad_()
        members = model.member_logits(point)
        output = smooth(members, rule)
        aims = None if targets is None else targets[running]
        loss = LOSSES[attack.variant](members, output, labels[running], aims, mix)
        (gradient,) = torch.autograd.grad(loss.sum(), point)
        left = note(running, members.detach())
        running, gradient = running[left], gradient[left]
        if not len(running):
            return best, lowest
        size = 2 * attack.eps * (1 + math.cos(math.pi * step / attack.steps)) / 2
        here, around = x[running], clean[running]
        there = project(here + uphill(gradient, here, attack.bound, size), around, attack.bound)
        new = 1.0 if attack.variant == "reference" and not step else MOMENTUM  # there is no previous step
        moved = here + new * (there - here) + (1 - new) * (here - previous[running])
        previous[running] = here
        x[running] = project(moved, around, attack.bound)
    with torch.no_grad():
        note(running, model.member_logits(x[running]))
    return best, lowest


def probability_right(model: AttackedModel, members: Tensor, rule: Combination, labels: Tensor) -> Tensor:
    """Probability of a correct prediction, (N,), from member logits; 0 or 1 if the ensemble is not randomised."""
    if model.combination.randomised:
        return model.expected(members.argmax(-1) == labels)
    return (rule.combine(members).argmax(-1) == labels).float()


def smooth(members: Tensor, rule: Combination) -> Tensor:
    """The differentiable output for member logits (K, N, L): log-probabilities, or a soft count of votes."""
    if isinstance(rule, Votes):  # every member gets the same confidence in its vote
        return log_mean_probability(GAP * members / _gap(members).clamp_min(1e-12))
    return rule.combine(members)


def mixed_loss(members: Tensor, output: Tensor, labels: Tensor, targets: Tensor | None, mix: float) -> Tensor:
    """Cross-entropy of the mixed logits, per image; with targets, the negative cross-entropy of the targets."""
    tamed = members * (GAP / _gap(members)).clamp_max(1.0)
    logits = (1 - mix) * output / _gap(output).clamp_min(1e-12)
    if mix:
        logits = logits + mix * (leverage(tamed, labels)[..., None] * tamed).sum(0)
    if targets is None:
        return functional.cross_entropy(logits, labels, reduction="none")
    return -functional.cross_entropy(logits, targets, reduction="none")


@torch.no_grad()
def leverage(members: Tensor, labels: Tensor) -> Tensor:
    """Weight (K, N) of each member: its part in the gradient of the ensemble's probability of the label.

    With p_k the softmax of member k, ∂ log p̄_y / ∂z_k = (p_ky / Σ_j p_jy) · (e_y − p_k): the entry of the label is
    p_ky (1 − p_ky) / Σ_j p_jy. Members that are already wrong have weight 0, unless all are wrong.
    """
    probability = _entries(torch.softmax(members, dim=-1), labels)
    weight = _counted(members, labels) * (probability * (1 - probability)).clamp_min(1e-12)
    return weight / weight.sum(0)


def _counted(members: Tensor, labels: Tensor) -> Tensor:
    """1 for members (K, N) that are right, 0 for others; 1 for all members if none is right."""
    right = members.argmax(-1) == labels
    return torch.where(right.any(0), right, True).to(members.dtype)


def _entries(members: Tensor, classes: Tensor) -> Tensor:
    """Every member's entry (K, N) of one class per image."""
    return members.gather(-1, classes.expand(len(members), -1)[..., None]).squeeze(-1)


def reference_loss(members: Tensor, output: Tensor, labels: Tensor, targets: Tensor | None, mix: float) -> Tensor:
    """The loss of the variant ``reference``, one value per image."""
    if targets is not None:
        return -functional.cross_entropy(output, targets, reduction="none")
    logits = (1 - mix) * output / _gap(output).clamp_min(1e-12)
    if mix:
        tamed = torch.cat([members * (GAP / _gap(members).amax(0)).clamp_max(1.0), output[None]])
        logits = logits + mix * (runner_up_leverage(tamed, output, labels)[..., None] * tamed).sum(0)
    return functional.cross_entropy(logits, labels, reduction="none")


@torch.no_grad()
def runner_up_leverage(members: Tensor, output: Tensor, labels: Tensor) -> Tensor:
    """Weight (K, N) of each member: its part in the gradient of the probability of the ensemble's best other class.

    Computed as a softmax of logarithms, because at this temperature the parts are as small as e⁻⁵⁰.
    """
    rival = output.scatter(-1, labels[:, None], -float("inf")).argmax(-1)
    log_probability = _entries(torch.log_softmax(members / TEMPERATURE, -1), rival)
    others = torch.log1p(-log_probability.exp().clamp_max(1 - 1e-6))
    return torch.softmax(log_probability + others + _counted(members, labels).log(), dim=0)


LOSSES = {"derived": mixed_loss, "reference": reference_loss}


def _gap(logits: Tensor) -> Tensor:
    """Difference of the two largest entries of each row, as a constant."""
    best = logits.detach().topk(2, dim=-1).values
    return best[..., :1] - best[..., 1:]
