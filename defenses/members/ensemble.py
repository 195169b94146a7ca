"""An ensemble: K members behind one normalisation, whose prediction is the mean of their softmax outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn

from defenses.errors import BadInput
from defenses.members.diversity import log_mean_probability
from defenses.members.images import LabelledImages
from defenses.members.networks import Shape, build_network

if TYPE_CHECKING:
    from defenses.checkpoints import Provenance


class Ensemble(nn.Module):
    """Takes images in [0, 1]; subtracts ``mean`` and divides by ``std`` inside, so attacks see pixel units.

    Its output is the log of the mean probability, (N, L): softmax, argmax, cross-entropy and margins of
    it are those of the averaged prediction.
    """

    output: Literal["log-probabilities"] = "log-probabilities"
    mean: Tensor
    std: Tensor
    provenance: Provenance | None = None
    """Where it comes from, when it was loaded from a checkpoint."""
    precision: torch.dtype = torch.float32
    """What the members compute in; training may lower it, and their logits are float32 all the same."""

    def __init__(self, members: Sequence[nn.Module], mean: Tensor | float = 0.0, std: Tensor | float = 1.0) -> None:
        super().__init__()
        if not members:
            raise BadInput("an ensemble needs at least 1 member")
        self.members = nn.ModuleList(members)
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float32))
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.float32))

    def __len__(self) -> int:
        return len(self.members)

    def normalise(self, images: Tensor) -> Tensor:
        """What the members see."""
        return (images - self.mean) / self.std

    def member_logits(self, images: Tensor) -> Tensor:
        """Logits of every member, (K, N, L)."""
        inputs = self.normalise(images)
        return torch.stack([self.logits_of(member, inputs) for member in self.members])

    def logits_of(self, member: nn.Module, inputs: Tensor) -> Tensor:
        """Logits of one member, (N, L), from normalised images."""
        if self.precision == torch.float32:
            return cast(Tensor, member(inputs))
        with torch.autocast(inputs.device.type, self.precision):
            return cast(Tensor, member(inputs).float())

    def member_features(self, images: Tensor) -> Tensor:
        """Pooled features of every member, (K, N, D)."""
        inputs = self.normalise(images)
        features = [_features(member)(inputs).flatten(1) for member in self.members]
        if len({part.shape for part in features}) > 1:
            sizes = " and ".join(str(part.shape[1]) for part in features)
            raise BadInput(f"the members have {sizes} features, which do not stack; ask each with member(index)")
        return torch.stack(features)

    def forward(self, images: Tensor) -> Tensor:
        return log_mean_probability(self.member_logits(images))

    def member(self, index: int) -> Ensemble:
        """Member ``index`` as an ensemble of one; weights are shared."""
        alone = Ensemble([self.members[index]], self.mean, self.std)
        alone.precision = self.precision
        return alone


def has_features(member: nn.Module) -> bool:
    """True for a member that gives its pooled features; a program from outside seldom does."""
    return callable(getattr(member, "features", None))


def _features(member: nn.Module) -> Callable[[Tensor], Tensor]:
    features = getattr(member, "features", None)
    if not has_features(member):
        raise BadInput(f"member of type {type(member).__name__} has no features(images) method; add one to use this")
    return cast(Callable[[Tensor], Tensor], features)


def build_ensemble(
    network: str, members: int, shape: Shape, classes: int, mean: Tensor | float = 0.0, seed: int = 0
) -> Ensemble:
    """Freshly initialised members; member k depends only on ``seed`` and k."""
    if members < 1:
        raise BadInput(f"members is {members}; an ensemble has at least 1")
    built = []
    with torch.random.fork_rng(devices=[]):
        for index in range(members):
            torch.manual_seed(seed * 1_000_003 + index)
            built.append(build_network(network, shape, classes))
    return Ensemble(built, mean)


@contextmanager
def batch_norm_mode(model: nn.Module, mode: Literal["batch", "running", "as set"]) -> Iterator[None]:
    """Normalise by the batch's own statistics or by the running ones; in any case leave the running ones alone."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    before = [(norm.training, norm.track_running_stats) for norm in norms]
    for norm in norms:
        norm.training = norm.training if mode == "as set" else mode == "batch"
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm, (training, tracking) in zip(norms, before, strict=True):
            norm.training, norm.track_running_stats = training, tracking


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, every module's own mode back afterwards (frozen members stay frozen)."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@torch.no_grad()
def predict_logits(ensemble: Ensemble, data: LabelledImages, batch_size: int = 500) -> Tensor:
    """Member logits (K, N, L) of a set of images, computed in batches on the ensemble's device, on the CPU."""
    device = ensemble.mean.device
    with evaluation_mode(ensemble):
        rows = range(0, len(data), batch_size)
        batches = (data.images(slice(start, start + batch_size)).to(device) for start in rows)
        return torch.cat([ensemble.member_logits(images).cpu() for images in batches], dim=1)
