"""Adversarial training (AdvT) for any objective: adversarial images are added to every batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from defenses.errors import BadInput
from defenses.objectives.base import Defense, Place, Terms, cross_entropy
from defenses.objectives.ece import Baseline

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from defenses.members.ensemble import Ensemble


@dataclass(frozen=True)
class AdversarialTraining(Defense):
    """Adversarial training: an objective on clean images and their FGSM or PGD images, ε from U(eps_low, eps_high).

    The attack changes pixels in [0, 1]; it attacks the averaged ensemble. ``batch_norm`` sets the statistics that batch
    norm uses during the attack: ``batch`` as in the training pass, or ``running`` as in evaluation.
    """

    attacks: ClassVar[bool] = True

    attack: Literal["fgsm", "pgd"]
    eps_low: float = 0.01
    eps_high: float = 0.05
    steps: int = 10
    batch_norm: Literal["batch", "running"] = "batch"
    labels: Literal["true", "predicted"] = "true"
    inner: Defense = field(default=Baseline(), metadata={"spec": False})

    def __post_init__(self) -> None:
        if not 0 <= self.eps_low <= self.eps_high <= 1:
            raise BadInput(
                f"eps of advt is drawn from [{self.eps_low:g}, {self.eps_high:g}]; set 0 ≤ eps_low ≤ eps_high ≤ 1"
            )
        if self.steps < 1:
            raise BadInput(f"steps of advt is {self.steps}; it must be at least 1")

    @property
    def separable(self) -> bool:  # type: ignore[override]
        return self.inner.separable

    @property
    def cost(self) -> float:  # type: ignore[override]
        return self.inner.cost + (self.steps if self.attack == "pgd" else 1)

    def around(self, inner: Defense) -> AdversarialTraining:
        """The same adversarial training around another objective."""
        if inner.attacks:
            raise BadInput(f"{type(inner).__name__} already trains on adversarial images; use it without advt")
        if type(inner).step is not Defense.step:
            raise BadInput(
                f"{type(inner).__name__} has its own training step, so it cannot be combined with advt; use it alone"
            )
        return replace(self, inner=inner)

    def check(self, members: int, classes: int) -> None:
        self.inner.check(members, classes)

    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        return self.inner.objective(logits, labels)

    def at(self, place: Place, ensemble: Ensemble, generator: torch.Generator) -> AdversarialTraining:
        return replace(self, inner=self.inner.at(place, ensemble, generator))

    def forward(self, ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Terms]:
        import torch

        if not self.inner.makes_images:
            return self.inner.forward(ensemble, images, labels)
        # the inner defense would replace the adversarial images: these get the members' cross-entropy as a term instead
        (clean, adversarial), (clean_labels, labels) = images.chunk(2), labels.chunk(2)
        logits, terms = self.inner.forward(ensemble, clean, clean_labels)
        beside = ensemble.member_logits(adversarial)
        return torch.cat([logits, beside], 1), {**terms, "adversarial": cross_entropy(beside, labels).sum(0)}

    def batch(
        self, ensemble: Ensemble, images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        import torch

        from defenses.members.ensemble import batch_norm_mode
        from defenses.training.distributed import drawn

        images, labels = self.inner.batch(ensemble, images, labels, generator)
        eps = self.eps_low + (self.eps_high - self.eps_low) * torch.rand((), generator=generator).item()
        start = drawn(torch.rand, images.shape, generator).to(images) if self.attack == "pgd" else None
        with batch_norm_mode(ensemble, self.batch_norm):
            adversarial = sign_ascent(ensemble, images, labels, eps, self.steps, start, self.labels)
        return torch.cat([images, adversarial]), torch.cat([labels, labels])


def random_sign_ascent(
    ensemble: Ensemble,
    images: Tensor,
    labels: Tensor,
    eps: float,
    steps: int,
    generator: torch.Generator,
    batch_norm: Literal["batch", "as set"] = "as set",
    normalised: bool = True,
) -> Tensor:
    """PGD from a random start; batch norm's running averages are not updated."""
    import torch

    from defenses.members.ensemble import batch_norm_mode
    from defenses.training.distributed import drawn

    start = drawn(torch.rand, images.shape, generator).to(images)
    with batch_norm_mode(ensemble, batch_norm):
        return sign_ascent(ensemble, images, labels, eps, steps, start, normalised=normalised)


def sign_ascent(
    ensemble: Ensemble,
    images: Tensor,
    labels: Tensor,
    eps: float,
    steps: int,
    start: Tensor | None,
    against: Literal["true", "predicted"] = "true",
    normalised: bool = True,
) -> Tensor:
    """FGSM if ``start`` is None, else PGD: ``steps`` steps of size eps/steps from a random start.

    ``start`` is uniform in [0, 1]; it is scaled to ±eps. The loss is minus the output for the label. If the output is
    ``normalised``, that is the cross-entropy, whose gradient keeps its signs where a probability rounds to 1.
    """
    import torch
    from torch.nn import functional

    if against == "predicted":
        with torch.no_grad():
            labels = ensemble(images).argmax(-1)
    measured = functional.cross_entropy if normalised else functional.nll_loss
    if start is None:
        steps, adversarial = 1, images
    else:
        adversarial = (images + eps * (2 * start - 1)).clamp(0, 1)
    for _ in range(steps):
        adversarial = adversarial.detach().requires_grad_()
        loss = measured(ensemble(adversarial), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, adversarial)
        moved = adversarial.detach() + eps / steps * gradient.sign()
        adversarial = images + (moved - images).clamp(-eps, eps)
        adversarial = adversarial.clamp(0, 1)
    return adversarial.detach()
