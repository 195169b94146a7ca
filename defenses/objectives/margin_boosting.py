"""Margin boosting: the margin cross-entropy (MCE), and MRBoost, which adds members one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from defenses.errors import BadInput
from defenses.objectives.base import Defense, Place, Terms, at_least, cross_entropy

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from defenses.members.ensemble import Ensemble


@dataclass(frozen=True)
class MCE(Defense):
    """Margin cross-entropy (Zhang et al. 2022): CE + weight · mean over wrong classes j of −log softmax(−z)_j.

    The second term is smallest if all wrong logits are equal and far below the true logit.
    """

    separable: ClassVar[bool] = True

    weight: float = 1.0

    def __post_init__(self) -> None:
        at_least("weight", self.weight, 0)

    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        terms = {"ece": cross_entropy(logits, labels).sum(0)}
        if self.weight:
            terms["wrong_classes"] = self.weight * _wrong_classes(logits, labels).sum(0)
        return terms


def joined(finished: Ensemble | None, trained: Ensemble) -> Ensemble:
    """The ensemble so far: the finished members and the members in training."""
    from defenses.members.ensemble import Ensemble

    so_far = Ensemble([*(finished.members if finished else ()), *trained.members], trained.mean, trained.std)
    so_far.precision = trained.precision
    return so_far


def check_attack(name: str, eps: float, steps: int) -> None:
    """Raise BadInput if ``eps`` or ``steps`` is out of range."""
    if not 0 < eps <= 1:
        raise BadInput(f"eps of {name} is {eps:g}; it must lie in (0, 1]")
    at_least("steps", steps, 1)


def _wrong_classes(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the wrong classes j of −log softmax(−z)_j, for every member and image, (K, N)."""
    unlikely = -(-logits).log_softmax(-1)
    true = unlikely.gather(-1, labels.expand(len(logits), -1)[..., None]).squeeze(-1)
    return (unlikely.sum(-1) - true) / (logits.shape[-1] - 1)


@dataclass(frozen=True)
class MRBoost(MCE):
    """Margin boosting (Zhang et al. 2022): members are added one after the other, each trained with MCE.

    Each new member is trained on PGD images of the ensemble so far, including itself. The weight of an image is
    exp(−eta · margin), scaled to mean 1 over the batch. The margin is that of the finished members' averaged
    probabilities on the adversarial image. Weighting is, on average, the same as sampling by these weights.
    """

    separable: ClassVar[bool] = False
    boosts: ClassVar[bool] = True
    attacks: ClassVar[bool] = True
    in_bfloat16: ClassVar[bool] = True

    eps: float = 8 / 255
    steps: int = 10
    eta: float = 1.0
    finished: Any = field(default=None, compare=False, metadata={"spec": False})
    """The ensemble of the members that are trained already; None for the first member."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attack("mrboost", self.eps, self.steps)
        at_least("eta", self.eta, 0)

    @property
    def cost(self) -> float:  # type: ignore[override]
        return 1.0 + self.steps

    def at(self, place: Place, ensemble: Ensemble, generator: torch.Generator) -> MRBoost:
        return replace(self, finished=place.finished)

    def batch(
        self, ensemble: Ensemble, images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        from defenses.objectives.adversarial_training import random_sign_ascent

        so_far = joined(self.finished, ensemble)
        return random_sign_ascent(so_far, images, labels, self.eps, self.steps, generator), labels

    def forward(self, ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Terms]:
        logits = ensemble.member_logits(images)
        weights = self.weights(images, labels)
        return logits, {name: weights * term for name, term in self.objective(logits, labels).items()}

    def weights(self, images: Tensor, labels: Tensor) -> Tensor:
        """The weight of each image; the mean weight over the batch is 1."""
        import torch

        from defenses.training.distributed import summed

        if self.finished is None:
            return images.new_ones(len(images))
        with torch.no_grad():
            probability = self.finished(images).exp()
            true = probability.gather(1, labels[:, None])
            wrong = probability.scatter(1, labels[:, None], 0).amax(1, keepdim=True)
            raw = (-self.eta * (true - wrong)).exp().squeeze(1)
            mean, count = summed(torch.stack([raw.sum(), raw.new_tensor(len(raw))]))
            return raw * count / mean
