"""Interactive global adversarial training (iGAT): each image that fools the ensemble is assigned to one member."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from defenses.errors import BadInput
from defenses.objectives.base import Defense, Place, Terms, at_least, cross_entropy
from defenses.objectives.ece import Baseline
from defenses.objectives.label_smoothing import LabelSmoothing

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from defenses.members.ensemble import Ensemble

LARGEST = 0.99
"""The regulariser clips the largest wrong probability at this value, so that it stays finite."""


@dataclass(frozen=True)
class IGAT(Defense):
    """iGAT (Deng & Mu 2023): adversarial training around another objective, on clean images and their PGD images.

    Each image that the ensemble misclassifies is assigned to one member, and this member's cross-entropy is the loss.
    ``allocation=rank`` draws the member with probability proportional to 2^rank; the member with the highest
    probability of the true class has the highest rank. On the same images, ``weight`` · Σ_k −log(1 − largest wrong
    probability of member k) lowers the largest wrong probability of every member. These two terms replace the term
    ``ece`` of the inner objective; its other terms stay.
    """

    attacks: ClassVar[bool] = True

    weight: float = 0.5
    allocation: Literal["rank", "uniform", "best"] = "rank"
    eps: float = 8 / 255
    steps: int = 10
    inner: Defense = field(default=Baseline(), metadata={"spec": False})
    generator: Any = field(default=None, compare=False, metadata={"spec": False})
    """The torch generator that draws the members; None means the global generator."""

    def __post_init__(self) -> None:
        at_least("weight", self.weight, 0)
        at_least("steps", self.steps, 1)
        if not 0 < self.eps <= 1:
            raise BadInput(f"eps of igat is {self.eps:g}; it must lie in (0, 1]")

    @property
    def cost(self) -> float:  # type: ignore[override]
        return self.inner.cost + 1 + self.steps

    def around(self, inner: Defense) -> IGAT:
        """The same training around another objective."""
        own_forward = type(inner).forward is not Defense.forward and not inner.makes_images
        if own_forward or inner.attacks or type(inner).step is not Defense.step:
            raise BadInput(
                f"igat cannot be combined with {type(inner).__name__}, which has its own forward pass or attack; "
                "combine it with an objective of the logits, such as adp, or with dverge"
            )
        if isinstance(inner, LabelSmoothing):
            _refuse(inner)
        return replace(self, inner=inner)

    def check(self, members: int, classes: int) -> None:
        self.inner.check(members, classes)

    def at(self, place: Place, ensemble: Ensemble, generator: torch.Generator) -> Defense:
        inner = self.inner.at(place, ensemble, generator)
        if type(inner) is not type(self.inner):  # the inner defense begins with another one, as dverge does
            return inner
        return replace(self, inner=inner, generator=generator)

    def batch(
        self, ensemble: Ensemble, images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        import torch

        from defenses.objectives.adversarial_training import random_sign_ascent

        images, labels = self.inner.batch(ensemble, images, labels, generator)
        adversarial = random_sign_ascent(ensemble, images, labels, self.eps, self.steps, generator, "batch")
        return torch.cat([images, adversarial]), torch.cat([labels, labels])

    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        inner = self.inner.objective(logits, labels)
        others = {name: term for name, term in inner.items() if name != "ece"}
        if not others and not isinstance(self.inner, Baseline):
            _refuse(self.inner)
        return others | self.shared_out(logits, labels)

    def forward(self, ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Terms]:
        if not self.inner.makes_images:
            return super().forward(ensemble, images, labels)
        half = len(images) // 2  # the inner defense makes its own images from the clean images
        _, terms = self.inner.forward(ensemble, images[:half], labels[:half])
        logits = ensemble.member_logits(images)
        own = {name: term.view(2, half).mean(0) for name, term in self.shared_out(logits, labels).items()}
        return logits, {**terms, **own}

    def shared_out(self, logits: Tensor, labels: Tensor) -> Terms:
        """The two terms on images that the ensemble misclassifies; 0 on the other images."""
        from defenses.members.diversity import log_mean_probability

        wrong = (log_mean_probability(logits.detach()).argmax(-1) != labels).to(logits.dtype)
        losses = cross_entropy(logits, labels)
        taken = losses.gather(0, self.allocate(losses.detach())[None]).squeeze(0)
        terms = {"allocated": wrong * taken}
        if self.weight:
            terms["wrong_class"] = self.weight * wrong * _away_from_wrong(logits, labels).sum(0)
        return terms

    def allocate(self, losses: Tensor) -> Tensor:
        """The member that each image is assigned to, (N,), from the members' cross-entropies (K, N)."""
        import torch

        from defenses.training.distributed import drawn

        members, images = losses.shape
        if self.allocation == "best":
            return losses.argmin(0)
        worst_first = losses.argsort(0, descending=True)  # rank 0 has the lowest probability of the true class
        exponents = torch.arange(members, dtype=torch.float64) * (self.allocation == "rank")
        shares = torch.softmax(exponents * torch.log(torch.tensor(2.0, dtype=torch.float64)), 0).cumsum(0)
        if self.generator:  # each process has a part of the clean images and the same part of the adversarial ones
            halves = (images - images // 2, images // 2)
            draws = torch.cat([drawn(torch.rand, (half,), self.generator) for half in halves])
        else:
            draws = torch.rand(images)
        ranks = torch.searchsorted(shares, draws.double(), right=True).clamp_max(members - 1)
        return worst_first.gather(0, ranks.to(losses.device)[None]).squeeze(0)


def _refuse(inner: Defense) -> NoReturn:
    raise BadInput(
        f"igat cannot be combined with {type(inner).__name__}: igat replaces its only term, 'ece', so it would change "
        "nothing; use igat alone, or combine it with an objective that has other terms, such as adp"
    )


def _away_from_wrong(logits: Tensor, labels: Tensor) -> Tensor:
    """−log(1 − p) of the largest wrong probability p of every member, clipped at `LARGEST`, (K, N)."""
    probability = logits.softmax(-1)
    index = labels.expand(len(logits), -1)[..., None]
    largest = probability.scatter(-1, index, 0).amax(-1)
    return -(1 - largest.clamp_max(LARGEST)).log()
