"""Users' networks: any module that returns logits, built from ``shape``, ``classes`` and its parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from defenses.errors import BadInput, first_line
from defenses.members.networks import Shape
from defenses.user_functions import UserFunction, is_in_file


def build(function: UserFunction, shape: Shape, classes: int) -> nn.Module:
    """A new module from the user's function; BadInput if the function fails."""
    try:
        network = function.target(shape=shape, classes=classes, **function.arguments)
    except BadInput:
        raise
    except Exception as error:
        what = f"shape={shape} and classes={classes}"
        raise BadInput(
            f"network {function.text} cannot be built with {what}: {type(error).__name__}: {first_line(error)}; "
            "correct the network's code"
        ) from error
    if not isinstance(network, nn.Module):
        raise BadInput(f"network {function.text} returns a {type(network).__name__}; it must return a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise BadInput(f"network {function.text} has no trainable parameters; add layers or nn.Parameter")
    return network


@torch.no_grad()
def check(network: nn.Module, spec: str, shape: Shape, classes: int) -> None:
    """Raise BadInput if a network does not return one row of logits per image, for two images and for one."""
    training = network.training
    network.eval()
    try:
        for count in (2, 1):
            images = torch.rand(count, *shape, generator=torch.Generator().manual_seed(0)) - 0.5
            try:
                output = network(images)
            except Exception as error:
                words = f"{type(error).__name__}: {first_line(error)}"
                raise BadInput(
                    f"network {spec} fails on {count} images of shape {shape} ({words}); "
                    "compute its sizes from the argument shape"
                ) from error
            if not isinstance(output, Tensor) or output.shape != (count, classes):
                found = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
                raise BadInput(
                    f"network {spec} gives {found} for {count} images of {classes} classes; "
                    f"it must give logits of shape {(count, classes)}"
                )
    finally:
        network.train(training)


def same(one: str, other: str) -> bool:
    """True if two specs name the same network, whatever the paths of their files; a digest distinguishes the files."""
    if not (is_in_file(one) and is_in_file(other)):
        return one == other
    return one.partition(".py:")[2] == other.partition(".py:")[2]
