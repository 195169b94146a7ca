"""The member networks: residual networks as the paper's Keras code built them, and near relatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from defenses import user_functions
from defenses.errors import BadInput
from defenses.registry import Registry
from defenses.source_digest import source_digest
from defenses.specs import parse, resolve

Shape = tuple[int, int, int]
"""Channels, height and width of the images."""


class SamePadConv2d(nn.Conv2d):
    """Convolution with TensorFlow's "same" padding: what is odd goes to the bottom and the right."""

    def forward(self, inputs: Tensor) -> Tensor:
        stride, kernel = self.stride[0], self.kernel_size[0]
        height, width = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in inputs.shape[-2:])
        if stride == 1:  # symmetric for odd kernels: let the convolution pad, it is faster
            return functional.conv2d(inputs, self.weight, self.bias, padding=(height // 2, width // 2))
        pad = (width // 2, width - width // 2, height // 2, height - height // 2)
        return functional.conv2d(functional.pad(inputs, pad), self.weight, self.bias, stride=stride)


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut, ReLU after the addition."""

    def __init__(
        self, conv: Any, norm: Any, entry: int, width: int, stride: int, norm_on_shortcut: bool, leak: float
    ) -> None:
        super().__init__()
        self.leak = leak
        self.conv1 = conv(entry, width, 3, stride)
        self.bn1 = norm(width)
        self.conv2 = conv(width, width, 3, 1)
        self.bn2 = norm(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or entry != width:
            projection = conv(entry, width, 1, stride)
            self.shortcut = nn.Sequential(projection, norm(width)) if norm_on_shortcut else projection

    def before_relu(self, inputs: Tensor) -> Iterator[Tensor]:
        """What enters the first ReLU, then what enters the second."""
        hidden = self.bn1(self.conv1(inputs))
        yield hidden
        yield self.bn2(self.conv2(_relu(hidden, self.leak))) + self.shortcut(inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        _, last = self.before_relu(inputs)
        return _relu(last, self.leak)


class ResidualNetwork(nn.Module):
    """A convolution, stages of residual blocks that halve the resolution, global pooling, one dense layer."""

    def __init__(
        self,
        conv: Any,
        norm: Any,
        shape: Shape,
        classes: int,
        widths: list[int],
        blocks: int,
        norm_on_shortcut: bool,
        leak: float,
    ) -> None:
        super().__init__()
        if not 0 <= leak < 1:
            raise BadInput(f"leak is {leak:g}; the slope of the ReLU below zero must lie in [0, 1)")
        self.leak = leak
        self.depth = 2 + 2 * blocks * len(widths)
        self.conv1 = conv(shape[0], widths[0], 3, 1)
        self.bn1 = norm(widths[0])
        entry, stages = widths[0], []
        for stage, width in enumerate(widths):
            strides = [2 if stage and not block else 1 for block in range(blocks)]
            entries = [entry] + [width] * (blocks - 1)
            pairs = zip(entries, strides, strict=True)
            stages.append(nn.Sequential(*(Block(conv, norm, e, width, s, norm_on_shortcut, leak) for e, s in pairs)))
            entry = width
        self.layers = nn.Sequential(*stages)
        self.fc = nn.Linear(entry, classes)

    def features(self, images: Tensor) -> Tensor:
        """Pooled features before the dense layer (64 for a ResNet-20)."""
        hidden = _relu(self.bn1(self.conv1(images)), self.leak)
        return self.layers(hidden).mean((-2, -1))

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.features(images))

    def before_relu(self, images: Tensor) -> Iterator[Tensor]:
        """The output of each of the ``depth`` layers before its ReLU, as it is asked for; the last is the logits."""
        hidden = self.bn1(self.conv1(images))
        yield hidden
        for stage in self.layers:
            assert isinstance(stage, nn.Sequential)
            for block in stage:
                assert isinstance(block, Block)
                for output in block.before_relu(_relu(hidden, self.leak)):
                    yield output
                hidden = output
        yield self.fc(_relu(hidden, self.leak).mean((-2, -1)))


def _relu(values: Tensor, leak: float) -> Tensor:
    return functional.leaky_relu(values, leak) if leak else torch.relu(values)


def _keras_conv(entry: int, width: int, kernel: int, stride: int) -> nn.Module:
    conv = SamePadConv2d(entry, width, kernel, stride)
    _keras_he_normal(conv.weight, fan_in=entry * kernel * kernel)
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return conv


def _keras_he_normal(weight: Tensor, fan_in: int) -> None:
    """Keras' he_normal: a normal cut at two standard deviations, widened so that its variance is 2 / fan_in."""
    deviation = (2 / fan_in) ** 0.5 / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


def _keras_norm(width: int) -> nn.Module:
    return nn.BatchNorm2d(width, eps=1e-3, momentum=0.01)


def _torch_conv(entry: int, width: int, kernel: int, stride: int) -> nn.Module:
    conv = nn.Conv2d(entry, width, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight)
    return conv


@dataclass(frozen=True)
class ResNet:
    """The paper's ResNet: convolutions with biases, no batch norm on shortcuts, Keras' padding and initialisation."""

    depth: int
    leak: float = 0.0

    def build(self, shape: Shape, classes: int) -> nn.Module:
        blocks, widths = _blocks(self.depth), [16, 32, 64]
        network = ResidualNetwork(_keras_conv, _keras_norm, shape, classes, widths, blocks, False, self.leak)
        _keras_he_normal(network.fc.weight, fan_in=network.fc.in_features)
        nn.init.zeros_(network.fc.bias)
        return network


@dataclass(frozen=True)
class ResNetBatchNormShortcut:
    """The ResNet of DVERGE's published checkpoints: no convolution biases, batch norm on the shortcuts."""

    depth: int
    leak: float = 0.0

    def build(self, shape: Shape, classes: int) -> nn.Module:
        blocks, widths = _blocks(self.depth), [16, 32, 64]
        return ResidualNetwork(_torch_conv, nn.BatchNorm2d, shape, classes, widths, blocks, True, self.leak)


@dataclass(frozen=True)
class ResNet18:
    """The wide ResNet-18 that adversarial training on CIFAR uses: four stages of two blocks, 64 to 512 channels."""

    leak: float = 0.0

    def build(self, shape: Shape, classes: int) -> nn.Module:
        widths = [64, 128, 256, 512]
        return ResidualNetwork(_torch_conv, nn.BatchNorm2d, shape, classes, widths, 2, True, self.leak)


@dataclass(frozen=True)
class MiniResNet:
    """A small residual network for 8×8 digits: two stages of one block."""

    width: int = 16
    leak: float = 0.0

    def build(self, shape: Shape, classes: int) -> nn.Module:
        if self.width < 1:
            raise BadInput(f"width is {self.width}; a network has at least 1 channel")
        widths = [self.width, 2 * self.width]
        return ResidualNetwork(_torch_conv, nn.BatchNorm2d, shape, classes, widths, 1, True, self.leak)


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
    """A network together with the one text that stands for it."""

    text: str
    """Canonical spec, such as ``resnet(depth=20)`` or ``mine.py:VGG(width=8)``."""
    build: Callable[[Shape, int], nn.Module]
    foreign: bool = False
    """Whether a user or another package brings it: it may take images of one size only."""
    digest: str = ""
    """Of the user's file that it is in."""


def find_network(spec: str) -> NamedNetwork:
    """A registered network, one that another package offers, or ``file.py:Network(key=value)``."""
    from defenses.members import user_networks

    if user_functions.is_in_file(spec):
        function = user_functions.from_file(spec, "network", user_networks.GIVEN)
        assert function.path is not None
        return NamedNetwork(
            function.text, partial(user_networks.build, function), foreign=True, digest=source_digest(function.path)
        )
    call = parse(spec, "network")
    target = NETWORKS.get(call.name) if call.name in NETWORKS.targets() else None
    if target is not None and not hasattr(target, "build"):
        function = user_functions.called(target, call, "network", user_networks.GIVEN)
        return NamedNetwork(function.text, partial(user_networks.build, function), foreign=True)
    text, network = resolve(NETWORKS, spec)
    return NamedNetwork(text, network.build)


def canonical_network(spec: str) -> str:
    """The one text form of a network spec."""
    return find_network(spec).text


def build_network(spec: str, shape: Shape, classes: int) -> nn.Module:
    """A freshly initialised network for a spec such as ``resnet20`` or ``resnet(depth=32)``."""
    return find_network(spec).build(shape, classes)


def check_network(spec: str, shape: Shape, classes: int) -> None:
    """Refuse a network from outside that gives no logits for such images."""
    from defenses.members import user_networks

    named = find_network(spec)
    if named.foreign:
        with torch.random.fork_rng(devices=[]):
            user_networks.check(named.build(shape, classes), named.text, shape, classes)
