"""The member networks: residual networks as the paper's Keras code built them, and near relatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from defenses.errors import BadInput
from defenses.registry import Registry
from defenses.specs import resolve

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

    def __init__(self, conv: Any, norm: Any, entry: int, width: int, stride: int, norm_on_shortcut: bool) -> None:
        super().__init__()
        self.conv1 = conv(entry, width, 3, stride)
        self.bn1 = norm(width)
        self.conv2 = conv(width, width, 3, 1)
        self.bn2 = norm(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or entry != width:
            projection = conv(entry, width, 1, stride)
            self.shortcut = nn.Sequential(projection, norm(width)) if norm_on_shortcut else projection

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.bn1(self.conv1(inputs)))
        return torch.relu(self.bn2(self.conv2(hidden)) + self.shortcut(inputs))


class ResidualNetwork(nn.Module):
    """A convolution, stages of residual blocks that halve the resolution, global pooling, one dense layer."""

    def __init__(
        self, conv: Any, norm: Any, shape: Shape, classes: int, widths: list[int], blocks: int, norm_on_shortcut: bool
    ) -> None:
        super().__init__()
        self.conv1 = conv(shape[0], widths[0], 3, 1)
        self.bn1 = norm(widths[0])
        entry, stages = widths[0], []
        for stage, width in enumerate(widths):
            strides = [2 if stage and not block else 1 for block in range(blocks)]
            entries = [entry] + [width] * (blocks - 1)
            pairs = zip(entries, strides, strict=True)
            stages.append(nn.Sequential(*(Block(conv, norm, e, width, s, norm_on_shortcut) for e, s in pairs)))
            entry = width
        self.layers = nn.Sequential(*stages)
        self.fc = nn.Linear(entry, classes)

    def features(self, images: Tensor) -> Tensor:
        """Pooled features before the dense layer (64 for a ResNet-20)."""
        hidden = torch.relu(self.bn1(self.conv1(images)))
        return self.layers(hidden).mean((-2, -1))

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.features(images))


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

    def build(self, shape: Shape, classes: int) -> nn.Module:
        network = ResidualNetwork(_keras_conv, _keras_norm, shape, classes, [16, 32, 64], _blocks(self.depth), False)
        _keras_he_normal(network.fc.weight, fan_in=network.fc.in_features)
        nn.init.zeros_(network.fc.bias)
        return network


@dataclass(frozen=True)
class ResNetBatchNormShortcut:
    """The ResNet of DVERGE's published checkpoints: no convolution biases, batch norm on the shortcuts."""

    depth: int

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return ResidualNetwork(_torch_conv, nn.BatchNorm2d, shape, classes, [16, 32, 64], _blocks(self.depth), True)


@dataclass(frozen=True)
class MiniResNet:
    """A small residual network for 8×8 digits: two stages of one block."""

    width: int = 16

    def build(self, shape: Shape, classes: int) -> nn.Module:
        if self.width < 1:
            raise BadInput(f"width is {self.width}; a network has at least 1 channel")
        return ResidualNetwork(_torch_conv, nn.BatchNorm2d, shape, classes, [self.width, 2 * self.width], 1, True)


def _blocks(depth: int) -> int:
    """Blocks per stage of a CIFAR ResNet of depth 6n + 2."""
    if depth < 8 or depth % 6 != 2:
        raise BadInput(f"depth is {depth}; a ResNet of this family has depth 6n+2: 8, 14, 20, 32, 44, 56, 110, …")
    return (depth - 2) // 6


NETWORKS: Registry[Any] = Registry("network")
NETWORKS.register("resnet", ResNet)
NETWORKS.register("resnet-bn-shortcut", ResNetBatchNormShortcut)
NETWORKS.register("mini-resnet", MiniResNet)
NETWORKS.alias("resnet20", "resnet(depth=20)")
NETWORKS.alias("resnet32", "resnet(depth=32)")
NETWORKS.alias("resnet20-dverge", "resnet-bn-shortcut(depth=20)")


def canonical_network(spec: str) -> str:
    """The one text form of a network spec."""
    return resolve(NETWORKS, spec)[0]


def build_network(spec: str, shape: Shape, classes: int) -> nn.Module:
    """A freshly initialised network for a spec such as ``resnet20`` or ``resnet(depth=32)``."""
    network = resolve(NETWORKS, spec)[1].build(shape, classes)
    return network
