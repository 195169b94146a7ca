"""An ensemble: K members with one normalisation and one combined prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn

from defenses.errors import BadInput
from defenses.members import layers
from defenses.members.combination import USUAL, Combination, parse_combination
from defenses.members.images import LabelledImages
from defenses.members.networks import Shape, build_network

if TYPE_CHECKING:
    from defenses.checkpoints import Provenance


class Ensemble(nn.Module):
    """Several networks with one normalisation and one combined prediction.

    The input is a batch of images in [0, 1]. The ensemble subtracts ``mean`` and divides by ``std`` itself, so attacks
    work in pixel units. The output is the logarithm of the combined probabilities, (N, L).

    ``combine`` sets the combination rule: ``probabilities`` (the mean of the members' probabilities, the default),
    ``logits`` (the softmax of their mean logits), ``votes`` or ``random`` (one drawn member predicts); see
    `defenses.members.combination`. Predictions and attacks use the rule. Training objectives use the members' logits
    and their mean probability.
    """

    output: Literal["log-probabilities"] = "log-probabilities"
    mean: Tensor
    std: Tensor
    provenance: Provenance | None = None
    """Origin of the weights, if the ensemble was loaded from a checkpoint."""
    precision: torch.dtype = torch.float32
    """Precision of the members during training; their logits are always float32."""

    def __init__(
        self,
        members: Sequence[nn.Module],
        mean: Tensor | float = 0.0,
        std: Tensor | float = 1.0,
        combine: str | Combination = USUAL,
    ) -> None:
        super().__init__()
        if not members:
            raise BadInput("an ensemble needs at least 1 member; the list of members is empty")
        self.members = nn.ModuleList(members)
        self.combination = parse_combination(combine) if isinstance(combine, str) else combine
        self.combination.check(len(members))
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float32))
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.float32))

    def __len__(self) -> int:
        return len(self.members)

    def normalise(self, images: Tensor) -> Tensor:
        """The input of the members: (images − mean) / std."""
        return (images - self.mean) / self.std

    def member_logits(self, images: Tensor) -> Tensor:
        """Logits of every member, (K, N, L)."""
        inputs = self.normalise(images)
        return torch.stack([self.logits_of(member, inputs) for member in self.members])

    def logits_of(self, member: nn.Module, inputs: Tensor) -> Tensor:
        """Logits of one member, (N, L), from normalised images."""
        if self.precision == torch.float32:
            return cast(Tensor, member(inputs))
        with self.autocast():
            return cast(Tensor, member(inputs).float())

    def autocast(self) -> AbstractContextManager[object]:
        """The members compute in the ensemble's precision inside."""
        usual = self.precision == torch.float32
        return nullcontext() if usual else torch.autocast(self.mean.device.type, self.precision)

    def member_features(self, images: Tensor) -> Tensor:
        """Pooled features of every member, (K, N, D)."""
        inputs = self.normalise(images)
        features = [layers.features(member, inputs) for member in self.members]
        if len({part.shape for part in features}) > 1:
            sizes = " and ".join(str(part.shape[1]) for part in features)
            raise BadInput(
                f"the members have {sizes} features, which cannot be stacked; use member(index) for each member"
            )
        return torch.stack(features)

    def forward(self, images: Tensor) -> Tensor:
        return self.combination.combine(self.member_logits(images))

    def member(self, index: int) -> Ensemble:
        """Member ``index`` as an ensemble of one member, with shared weights."""
        alone = Ensemble([self.members[index]], self.mean, self.std)
        alone.precision = self.precision
        return alone


def build_ensemble(
    network: str,
    members: int,
    shape: Shape,
    classes: int,
    mean: Tensor | float = 0.0,
    seed: int = 0,
    combine: str | Combination = USUAL,
) -> Ensemble:
    """An untrained ensemble; the weights of member k depend only on ``seed`` and k."""
    if members < 1:
        raise BadInput(f"members is {members}; an ensemble has at least 1")
    built = []
    with torch.random.fork_rng(devices=[]):
        for index in range(members):
            torch.manual_seed(seed * 1_000_003 + index)
            built.append(build_network(network, shape, classes))
    return Ensemble(built, mean, combine=combine)


@contextmanager
def batch_norm_mode(model: nn.Module, mode: Literal["batch", "running", "as set"]) -> Iterator[None]:
    """Choose batch or running statistics for batch norm inside; the running statistics are not updated."""
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
    """Set evaluation mode inside, and restore the mode of every module afterwards (frozen members stay frozen)."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@torch.no_grad()
def predict_logits(ensemble: Ensemble, data: LabelledImages, batch_size: int = 500) -> Tensor:
    """Member logits (K, N, L) of a set of images, computed in batches on the ensemble's device, returned on the CPU."""
    device = ensemble.mean.device
    with evaluation_mode(ensemble):
        rows = range(0, len(data), batch_size)
        batches = (data.images(slice(start, start + batch_size)).to(device) for start in rows)
        return torch.cat([ensemble.member_logits(images).cpu() for images in batches], dim=1)
