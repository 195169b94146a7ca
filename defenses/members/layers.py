"""The features and the layer outputs of a member, from its own methods or from hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from defenses.errors import BadInput

ACTIVATIONS = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Hardswish,
    nn.Softplus,
    nn.Tanh,
    nn.Sigmoid,
)


def has_features(member: nn.Module) -> bool:
    """True if a member has features: a method ``features``, or a linear layer, whose input is used."""
    return callable(getattr(member, "features", None)) or bool(_modules(member, (nn.Linear,)))


def features(member: nn.Module, inputs: Tensor) -> Tensor:
    """A member's features of normalised images, (N, D).

    They come from the member's method ``features``; without it, they are the input of its last linear layer.
    """
    own = getattr(member, "features", None)
    if callable(own):
        return cast(Tensor, own(inputs)).flatten(1)
    linear = _modules(member, (nn.Linear,))
    if not linear:
        raise BadInput(
            f"member of type {type(member).__name__} has no features(images) method and no nn.Linear; add one of them"
        )
    with _watched(linear, before=True) as seen:
        member(inputs)
    if not seen:
        raise BadInput(f"member of type {type(member).__name__} uses no nn.Linear; add a features(images) method")
    return seen[-1].flatten(1)


def depth(member: nn.Module, image: Tensor) -> int:
    """The number of layers of a member, including the logits; ``image`` is normalised, (1, C, H, W)."""
    own = getattr(member, "depth", None)
    if isinstance(own, int) and hasattr(member, "before_relu"):
        return own
    from defenses.members.ensemble import evaluation_mode

    with torch.no_grad(), evaluation_mode(member):
        return len(list(before_relu(member, image)))


def before_relu(member: nn.Module, inputs: Tensor) -> Iterator[Tensor]:
    """The output of each layer before its activation; the last is the logits.

    A member can have a method ``before_relu``. Without it, the layers are the inputs of its activation modules; without
    activation modules, they are the outputs of its convolutions and linear layers.
    """
    own = getattr(member, "before_relu", None)
    if callable(own):
        yield from cast(Callable[[Tensor], Iterator[Tensor]], own)(inputs)
        return
    activations = _modules(member, ACTIVATIONS)
    watched = activations or _modules(member, (nn.Conv2d, nn.Linear))
    if not watched:
        raise BadInput(
            f"member of type {type(member).__name__} has no method before_relu(images) and no activation, "
            "convolution or linear modules; add one of them"
        )
    with _watched(watched, before=bool(activations)) as seen:
        logits = member(inputs)
    yield from seen if activations else seen[:-1]
    yield logits


def _modules(member: nn.Module, kinds: tuple[type[nn.Module], ...]) -> list[nn.Module]:
    return [module for module in member.modules() if isinstance(module, kinds)]


@contextmanager
def _watched(modules: list[nn.Module], before: bool) -> Iterator[list[Tensor]]:
    """Record the inputs (``before``) or the outputs of modules, in the order of the calls."""
    seen: list[Tensor] = []

    def entered(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0].clone() if getattr(module, "inplace", False) else inputs[0])

    def left(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        seen.append(output)

    hooks = [
        module.register_forward_pre_hook(entered) if before else module.register_forward_hook(left)
        for module in modules
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
