"""The member networks by name: the paper's, similar ones, and users' own. Listing them needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from defenses import user_functions
from defenses.errors import BadInput
from defenses.registry import Registry
from defenses.source_digest import source_digest
from defenses.specs import parse, resolve

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, int, int]
"""Channels, height and width of the images."""
GIVEN = ("shape", "classes")
"""The arguments of every network: (channels, height, width), and the number of classes."""


@dataclass(frozen=True)
class ResNet:
    """The paper's ResNet: convolutions with biases, no batch norm on shortcuts, Keras' padding and initialisation."""

    depth: int
    leak: float = 0.0

    def build(self, shape: Shape, classes: int) -> nn.Module:
        from defenses.members.residual import keras_resnet

        return keras_resnet(shape, classes, [16, 32, 64], _blocks(self.depth), self.leak)


@dataclass(frozen=True)
class ResNetBatchNormShortcut:
    """The ResNet of DVERGE's published checkpoints: no convolution biases, batch norm on the shortcuts."""

    depth: int
    leak: float = 0.0

    def build(self, shape: Shape, classes: int) -> nn.Module:
        from defenses.members.residual import torch_resnet

        return torch_resnet(shape, classes, [16, 32, 64], _blocks(self.depth), self.leak)


@dataclass(frozen=True)
class ResNet18:
    """The wide ResNet-18 that adversarial training on CIFAR uses: four stages of two blocks, 64 to 512 channels."""

    leak: float = 0.0

    def build(self, shape: Shape, classes: int) -> nn.Module:
        from defenses.members.residual import torch_resnet

        return torch_resnet(shape, classes, [64, 128, 256, 512], 2, self.leak)


@dataclass(frozen=True)
class MiniResNet:
    """A small residual network for 8×8 digits: two stages of one block."""

    width: int = 16
    leak: float = 0.0

    def build(self, shape: Shape, classes: int) -> nn.Module:
        if self.width < 1:
            raise BadInput(f"width is {self.width}; a network has at least 1 channel")
        from defenses.members.residual import torch_resnet

        return torch_resnet(shape, classes, [self.width, 2 * self.width], 1, self.leak)


def _blocks(depth: int) -> int:
    """Blocks per stage of a CIFAR ResNet of depth 6n + 2."""
    if depth < 8 or depth % 6 != 2:
        raise BadInput(f"depth is {depth}; a ResNet of this family has depth 6n+2: 8, 14, 20, 32, 44, 56, 110, …")
    return (depth - 2) // 6


NETWORKS: Registry[Any] = Registry("network")
NETWORKS.register("resnet", ResNet)
NETWORKS.register("resnet-bn-shortcut", ResNetBatchNormShortcut)
NETWORKS.register("resnet18", ResNet18)
NETWORKS.register("mini-resnet", MiniResNet)
NETWORKS.alias("resnet20", "resnet(depth=20)")
NETWORKS.alias("resnet32", "resnet(depth=32)")
NETWORKS.alias("resnet20-dverge", "resnet-bn-shortcut(depth=20)")


@dataclass(frozen=True)
class NamedNetwork:
    """A network with its canonical spec."""

    text: str
    """Canonical spec, such as ``resnet(depth=20)`` or ``mine.py:VGG(width=8)``."""
    build: Callable[[Shape, int], nn.Module]
    foreign: bool = False
    """True for a network of a user or of another package; it may accept images of one size only."""
    digest: str = ""
    """Digest of the user's file that defines it; empty for other networks."""


def find_network(spec: str) -> NamedNetwork:
    """A registered network, a network of another package, or ``file.py:Network(key=value)``."""
    if user_functions.is_in_file(spec):
        return _foreign(user_functions.from_file(spec, "network", GIVEN))
    call = parse(spec, "network")
    target = NETWORKS.get(call.name) if call.name in NETWORKS.targets() else None
    if target is not None and not hasattr(target, "build"):
        return _foreign(user_functions.called(target, call, "network", GIVEN))
    text, network = resolve(NETWORKS, spec)
    return NamedNetwork(text, network.build)


def _foreign(function: user_functions.UserFunction) -> NamedNetwork:
    from defenses.members import user_networks

    digest = source_digest(function.path) if function.path is not None else ""
    return NamedNetwork(function.text, partial(user_networks.build, function), foreign=True, digest=digest)


def canonical_network(spec: str) -> str:
    """The canonical form of a network spec."""
    return find_network(spec).text


def same_network(one: str, other: str) -> bool:
    """True if two specs name the same network, such as ``resnet20`` and ``resnet(depth=20)``."""
    return one == other or canonical_network(one) == canonical_network(other)


def build_network(spec: str, shape: Shape, classes: int) -> nn.Module:
    """A freshly initialised network for a spec such as ``resnet20`` or ``resnet(depth=32)``."""
    return find_network(spec).build(shape, classes)


def check_network(spec: str, shape: Shape, classes: int) -> None:
    """Raise BadInput if a network from outside does not return logits for images of this shape."""
    import torch

    from defenses.members import user_networks

    named = find_network(spec)
    if named.foreign:
        with torch.random.fork_rng(devices=[]):
            user_networks.check(named.build(shape, classes), named.text, shape, classes)
