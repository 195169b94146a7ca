"""Layer-wise orthogonality (LOTOS): the convolutions of different members amplify different inputs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from defenses.errors import BadInput
from defenses.objectives.base import Defense, Terms, at_least, cross_entropy, positive, several_members

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from defenses.members.ensemble import Ensemble

Seen = list[tuple["nn.Conv2d", tuple[int, ...]]]
"""The convolutions of a member in the order in which they are called, each with the shape of one input."""


@dataclass(frozen=True)
class LOTOS(Defense):
    """Layer-wise orthogonality: the first convolutions respond weakly to the top singular vectors of other members.

    ECE + weight · mean over layers and pairs i ≠ j of max(0, ‖f_j v_i‖ / σ_j − threshold). f_j is the convolution of
    member j, v_i is the top singular vector of f_i, and σ_j = ‖f_j v_j‖. Scaling f_j does not change the penalty.
    """

    in_bfloat16: ClassVar[bool] = True

    weight: float = 1.0
    threshold: float = 0.1
    """Relative response ‖f_j v_i‖ / σ_j below which there is no penalty."""
    layers: int = 1
    """Number of penalised convolutions of each member, counted from the input."""
    iterations: int = 10
    """Steps of the power iteration that finds a top singular vector."""

    def __post_init__(self) -> None:
        positive("weight", self.weight)
        at_least("threshold", self.threshold, 0)
        at_least("layers", self.layers, 1)
        at_least("iterations", self.iterations, 1)

    def check(self, members: int, classes: int) -> None:
        several_members("lotos", members, "compares the convolutions of members")

    def forward(self, ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Terms]:
        with _watched(ensemble) as seen:
            logits = ensemble.member_logits(images)
        fewest = min(map(len, seen))
        if fewest < self.layers:
            raise BadInput(
                f"lotos needs {self.layers} convolutions in every member; one has {fewest}: "
                "lower layers, or use another network"
            )
        excess = [self.excess([member[place] for member in seen]) for place in range(self.layers)]
        penalty = self.weight * sum(excess[1:], excess[0]) / self.layers
        return logits, {"ece": cross_entropy(logits, labels).sum(0), "response": penalty.expand(len(labels))}

    def excess(self, layer: Seen) -> Tensor:
        """Mean over pairs of members of the relative response above the threshold."""
        vectors = [top_vector(*one, self.iterations) for one in layer]
        above = (responses([conv for conv, _ in layer], vectors) - self.threshold).clamp_min(0)
        members = len(layer)
        return (above.sum() - above.diagonal().sum()) / (members * (members - 1))


def responses(convolutions: Sequence[nn.Conv2d], vectors: Sequence[Tensor]) -> Tensor:
    """‖f_j v_i‖ / ‖f_j v_j‖ in row i and column j: 1 on the diagonal."""
    import torch

    if len({vector.shape for vector in vectors}) > 1:
        raise BadInput("lotos compares convolutions with inputs of the same shape; train members of one network")
    stacked = torch.cat(list(vectors))
    sizes = torch.stack([linear(conv, stacked).flatten(1).norm(dim=1) for conv in convolutions], dim=1)
    return sizes / sizes.diagonal().clamp_min(torch.finfo(sizes.dtype).tiny)


def top_vector(conv: nn.Conv2d, shape: tuple[int, ...], iterations: int) -> Tensor:
    """The unit input (1, C, H, W) that a convolution amplifies most, by power iteration, without a gradient."""
    import torch

    weight = conv.weight.detach()
    start = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    vector = start.to(weight)
    with torch.enable_grad():
        for _ in range(iterations):
            point = vector.requires_grad_()
            half = linear(conv, point, weight).square().sum() / 2  # its gradient is fᵀ f v
            (vector,) = torch.autograd.grad(half, point)
            vector = vector / vector.norm().clamp_min(torch.finfo(vector.dtype).tiny)
    return vector.detach()


def linear(conv: nn.Conv2d, inputs: Tensor, weight: Tensor | None = None) -> Tensor:
    """The convolution without its bias: a linear map."""
    from torch.func import functional_call

    own = {"weight": conv.weight if weight is None else weight}
    if conv.bias is not None:
        own["bias"] = conv.bias.new_zeros(conv.bias.shape)
    return cast("Tensor", functional_call(conv, own, inputs))  # the module's own forward pass knows its padding


@contextmanager
def _watched(ensemble: Ensemble) -> Iterator[list[Seen]]:
    """Record the convolutions that are called inside, for each member."""
    from torch import nn

    seen: list[Seen] = [[] for _ in ensemble.members]

    def note(place: int) -> Any:
        return lambda module, inputs: seen[place].append((module, tuple(inputs[0].shape[1:])))

    hooks = [
        module.register_forward_pre_hook(note(place))
        for place, member in enumerate(ensemble.members)
        for module in member.modules()
        if isinstance(module, nn.Conv2d)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
