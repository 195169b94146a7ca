"""Defenses that shape the members' input gradients: GAL turns them apart, TRS also makes them small."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

from defenses.distributed import drawn
from defenses.errors import BadInput
from defenses.members.diversity import without_label
from defenses.members.ensemble import Ensemble, batch_norm_mode
from defenses.objectives import Defense, Place, Terms, at_least, cross_entropy


def loss_gradients(ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Member logits (K, N, L), and g_k = ∇_x CE_k per pixel in [0, 1] (K, N, D), both to be differentiated again.

    The cross-entropy is written as softplus(logsumexp of the other logits − z_y): its gradient keeps its
    direction where softmax − one-hot has rounded to nothing, on images a member is sure of.
    """
    if not images.requires_grad:
        images = images.detach().requires_grad_()
    logits = ensemble.member_logits(images)
    true = logits.gather(-1, labels.expand(len(logits), -1)[..., None]).squeeze(-1)
    loss = functional.softplus(without_label(logits, labels).logsumexp(-1) - true)
    gradients = [torch.autograd.grad(member.sum(), images, create_graph=True)[0].flatten(1) for member in loss]
    return logits, torch.stack(gradients)


def gradient_cosines(gradients: Tensor) -> Tensor:
    """Cosine of every pair of members on every image, (K(K−1)/2, N); 0 where a gradient is 0."""
    largest = gradients.detach().abs().amax(-1, keepdim=True)
    alive = largest > 1e-30
    scaled = gradients / torch.where(alive, largest, 1.0)  # the norm is at least 1: no square underflows
    square = scaled.square().sum(-1, keepdim=True)
    unit = scaled / torch.where(alive, square, 1.0).sqrt()
    first, second = torch.triu_indices(len(gradients), len(gradients), offset=1, device=gradients.device)
    return (unit[first] * unit[second]).sum(-1)


@dataclass(frozen=True)
class GAL(Defense):
    """Gradient alignment loss (Kariyappa & Qureshi 2019): the members' input gradients are turned apart.

    Mean of the members' cross-entropies + weight · log Σ_{i<j} exp cos(g_i, g_j), with Gaussian noise on
    every other image. Its authors trained networks with leaky ReLUs: ``--network "resnet20(leak=0.1)"``.
    """

    weight: float = 0.5
    noise: float = 0.045

    def __post_init__(self) -> None:
        at_least("weight", self.weight, 0)
        at_least("noise", self.noise, 0)

    def check(self, members: int, classes: int) -> None:
        _need_two("gal", members)

    def batch(
        self, ensemble: Ensemble, images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        noisy = images.clone()
        noise = drawn(torch.randn, images[::2].shape, generator).to(images)
        noisy[::2] = (images[::2] + self.noise * noise).clamp(0, 1)
        return noisy, labels

    def forward(self, ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Terms]:
        logits, gradients = loss_gradients(ensemble, images, labels)
        coherence = gradient_cosines(gradients).logsumexp(0)
        return logits, {"ce": cross_entropy(logits, labels).mean(0), "coherence": self.weight * coherence}


@dataclass(frozen=True)
class TRS(Defense):
    """Transferability reduced smooth ensembles (Yang et al. 2021): input gradients apart, and small nearby too.

    ECE + λ_a · mean_{i<j} |cos(g_i, g_j)| + λ_b · mean_k 2‖∇_x CE_k(x̂)‖². Every other x̂ is the image itself;
    the rest is found by sign ascent on the gradient norm, ``steps`` of 2δ/steps inside a ball of radius δ,
    which grows over training from ``delta_first`` to ``delta_last``.
    """

    lambda_a: float = 40.0
    lambda_b: float = 2.5
    delta_first: float = 0.01
    delta_last: float = 0.03
    steps: int = 6
    progress: float = field(default=0.0, metadata={"spec": False})
    """Share of training that is over."""

    def __post_init__(self) -> None:
        at_least("lambda_a", self.lambda_a, 0)
        at_least("lambda_b", self.lambda_b, 0)
        if not 0 <= self.delta_first <= self.delta_last <= 1:
            raise BadInput(
                f"delta of trs grows from {self.delta_first:g} to {self.delta_last:g}; need 0 ≤ first ≤ last ≤ 1"
            )
        at_least("steps", self.steps, 1)

    def check(self, members: int, classes: int) -> None:
        _need_two("trs", members)

    def at(self, place: Place, ensemble: Ensemble, generator: torch.Generator) -> TRS:
        return replace(self, progress=place.epoch / max(place.epochs - 1, 1))

    @property
    def delta(self) -> float:
        """Radius of the ball at this point of training."""
        return self.delta_first + (self.delta_last - self.delta_first) * self.progress

    def forward(self, ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Terms]:
        logits, gradients = loss_gradients(ensemble, images, labels)
        moved = slice(1, None, 2)  # so that half of the adversarial images of advt are moved too
        with batch_norm_mode(ensemble, "as set"):
            steep = steepest(ensemble, images[moved], labels[moved], self.delta, self.steps)
            steep_gradients = loss_gradients(ensemble, steep, labels[moved])[1]
        slope = gradients.square().sum(-1)
        slope[:, moved] = steep_gradients.square().sum(-1)
        return logits, {
            "ece": cross_entropy(logits, labels).sum(0),
            "similarity": self.lambda_a * gradient_cosines(gradients).abs().mean(0),
            "slope": self.lambda_b * 2 * slope.mean(0),
        }


def steepest(ensemble: Ensemble, images: Tensor, labels: Tensor, delta: float, steps: int) -> Tensor:
    """Images moved within ±delta, and within [0, 1], to where the members' losses are steepest."""
    moved = images
    for _ in range(steps):
        moved = moved.detach().requires_grad_()
        slope = loss_gradients(ensemble, moved, labels)[1].square().sum()
        (uphill,) = torch.autograd.grad(slope, moved)
        moved = moved.detach() + 2 * delta / steps * uphill.sign()
        moved = (images + (moved - images).clamp(-delta, delta)).clamp(0, 1)
    return moved.detach()


def _need_two(name: str, members: int) -> None:
    if members < 2:
        raise BadInput(
            f"{name} compares the gradients of members, so it needs at least 2 members; members is {members}"
        )
