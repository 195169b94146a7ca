"""The networks are the paper's: parameter counts, padding, shortcuts, depths."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from defenses.errors import BadInput
from defenses.members.networks import build_network, canonical_network
from defenses.members.residual import ResidualNetwork, SamePadConv2d


def _trainable(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_resnet20_has_the_papers_274442_numbers_of_which_273066_are_trained() -> None:
    network = build_network("resnet20", (3, 32, 32), 10)
    statistics = sum(b.numel() for name, b in network.named_buffers() if name.endswith(("running_mean", "running_var")))
    assert _trainable(network) == 273_066
    assert _trainable(network) + statistics == 274_442


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "features"),
    [
        ("resnet20", (3, 32, 32), 10, 64),
        ("resnet20", (1, 28, 28), 10, 64),
        ("resnet(depth=8)", (3, 32, 32), 100, 64),
        ("resnet20-dverge", (3, 32, 32), 10, 64),
        ("mini-resnet", (1, 8, 8), 10, 32),
        ("mini-resnet(width=4)", (1, 8, 8), 10, 8),
    ],
)
def test_every_network_gives_logits_and_pooled_features(
    spec: str, shape: tuple[int, int, int], classes: int, features: int
) -> None:
    network = build_network(spec, shape, classes).eval()
    assert isinstance(network, ResidualNetwork)
    images = torch.rand(2, *shape)
    assert network(images).shape == (2, classes)
    assert network.features(images).shape == (2, features)
    torch.testing.assert_close(network(images), network.fc(network.features(images)))


@pytest.mark.parametrize("side", [32, 28, 7])
def test_stride_two_pads_as_tensorflow_does(side: int) -> None:
    conv = SamePadConv2d(3, 4, 3, 2)
    images = torch.randn(2, 3, side, side)
    # an even side lacks one row and column, which go to the bottom and the right; an odd one is symmetric
    pad = (0, 1, 0, 1) if side % 2 == 0 else (1, 1, 1, 1)
    expected = functional.conv2d(functional.pad(images, pad), conv.weight, conv.bias, stride=2)
    torch.testing.assert_close(conv(images), expected)
    assert conv(images).shape[-1] == -(-side // 2)


def test_stride_one_pads_evenly() -> None:
    conv = SamePadConv2d(3, 4, 3)
    images = torch.randn(2, 3, 9, 9)
    torch.testing.assert_close(conv(images), functional.conv2d(images, conv.weight, conv.bias, padding=1))


def test_only_the_dverge_variant_normalises_its_shortcuts_and_only_the_papers_has_biases() -> None:
    ours, theirs = (build_network(name, (3, 32, 32), 10) for name in ("resnet20", "resnet20-dverge"))
    shortcut = ours.layers[1][0].shortcut
    assert isinstance(shortcut, nn.Conv2d) and shortcut.kernel_size == (1, 1) and shortcut.stride == (2, 2)
    assert [type(part).__name__ for part in theirs.layers[1][0].shortcut] == ["Conv2d", "BatchNorm2d"]
    assert all(conv.bias is not None for conv in ours.modules() if isinstance(conv, nn.Conv2d))
    assert all(conv.bias is None for conv in theirs.modules() if isinstance(conv, nn.Conv2d))


def test_batch_norm_and_initial_kernels_are_those_of_keras() -> None:
    network = build_network("resnet20", (3, 32, 32), 10)
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-3, 0.01)}
    kernel = network.layers[2][2].conv2.weight.detach()
    he_normal = (2 / (64 * 9)) ** 0.5
    assert kernel.std().item() == pytest.approx(he_normal, rel=0.02)
    assert kernel.abs().max() <= 2 * he_normal / 0.879 + 1e-6
    assert all((conv.bias == 0).all() for conv in network.modules() if isinstance(conv, SamePadConv2d))


@pytest.mark.parametrize(("spec", "depth"), [("resnet20", 20), ("resnet(depth=8,leak=0.1)", 8), ("mini-resnet", 6)])
def test_the_layers_before_their_relu_end_in_the_logits_and_are_as_many_as_the_depth(spec: str, depth: int) -> None:
    network = build_network(spec, (1, 8, 8), 10).eval()
    assert isinstance(network, ResidualNetwork)
    images = torch.rand(2, 1, 8, 8)
    layers = list(network.before_relu(images))
    assert len(layers) == network.depth == depth
    torch.testing.assert_close(layers[0], network.bn1(network.conv1(images)))
    assert all((layer < 0).any() for layer in layers)
    torch.testing.assert_close(layers[-1], network(images))


def test_a_leak_is_the_slope_of_the_relus_below_zero_and_none_is_the_default() -> None:
    assert canonical_network("resnet20(leak=0)") == "resnet(depth=20)"
    assert canonical_network("resnet20(leak=0.1)") == "resnet(depth=20,leak=0.1)"
    network = build_network("mini-resnet(width=4,leak=0.1)", (1, 8, 8), 10).eval()
    images = torch.rand(2, 1, 8, 8)
    hidden = functional.leaky_relu(network.bn1(network.conv1(images)), 0.1)
    for block in (network.layers[0][0], network.layers[1][0]):
        middle = functional.leaky_relu(block.bn1(block.conv1(hidden)), 0.1)
        hidden = functional.leaky_relu(block.bn2(block.conv2(middle)) + block.shortcut(hidden), 0.1)
    torch.testing.assert_close(network(images), network.fc(hidden.mean((-2, -1))))


def test_a_deeper_resnet_has_more_blocks() -> None:
    assert len(build_network("resnet32", (3, 32, 32), 10).layers[0]) == 5


@pytest.mark.parametrize("depth", [-4, 2, 21, 24])
def test_a_depth_outside_the_family_is_refused(depth: int) -> None:
    with pytest.raises(BadInput, match=rf"depth is {depth}.*6n\+2"):
        build_network(f"resnet(depth={depth})", (3, 32, 32), 10)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet21", "unknown network 'resnet21'; did you mean"),
        ("resnet", "needs depth"),
        ("resnet(dept=20)", "did you mean depth"),
        ("mini-resnet(width=0)", "width is 0"),
        ("mini-resnet(leak=1)", "leak is 1"),
        ("resnet20(leak=-0.1)", "leak is -0.1"),
    ],
)
def test_other_mistakes_in_a_network_are_refused(spec: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build_network(spec, (1, 8, 8), 10)


def test_aliases_and_spellings_have_one_canonical_form() -> None:
    assert canonical_network("resnet20") == canonical_network(" resnet( depth = 20 )") == "resnet(depth=20)"
