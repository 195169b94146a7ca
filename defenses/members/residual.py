"""Residual networks as modules: blocks, stages, and how Keras and PyTorch initialise them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from defenses.errors import BadInput
from defenses.members.batch_norm import BatchNorm2d
from defenses.members.networks import Shape


class SamePadConv2d(nn.Conv2d):
    """Convolution with TensorFlow's "same" padding: an odd pixel of padding goes to the bottom and the right."""

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
        """The input of the first ReLU, then the input of the second."""
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
        """The output of each of the ``depth`` layers before its ReLU, computed on demand; the last is the logits."""
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
    """Keras' he_normal: a normal truncated at two standard deviations, scaled so that its variance is 2 / fan_in."""
    deviation = (2 / fan_in) ** 0.5 / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


def _keras_norm(width: int) -> nn.Module:
    return BatchNorm2d(width, eps=1e-3, momentum=0.01)


def _torch_conv(entry: int, width: int, kernel: int, stride: int) -> nn.Module:
    conv = nn.Conv2d(entry, width, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight)
    return conv


def keras_resnet(shape: Shape, classes: int, widths: list[int], blocks: int, leak: float) -> ResidualNetwork:
    """A residual network as the paper's Keras code builds it; its shortcuts have no batch norm."""
    network = ResidualNetwork(_keras_conv, _keras_norm, shape, classes, widths, blocks, False, leak)
    _keras_he_normal(network.fc.weight, fan_in=network.fc.in_features)
    nn.init.zeros_(network.fc.bias)
    return network


def torch_resnet(shape: Shape, classes: int, widths: list[int], blocks: int, leak: float) -> ResidualNetwork:
    """A residual network as PyTorch users build it; its shortcuts have batch norm."""
    return ResidualNetwork(_torch_conv, BatchNorm2d, shape, classes, widths, blocks, True, leak)
