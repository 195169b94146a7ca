"""Limits: input gradients against the matrix products of this machine, whole evaluations against torchattacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchattacks
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmark import evaluate
from benchmark.harness.acceleration import accelerated
from benchmark.harness.prepared import prepared


def _gradient(model: nn.Module, images: Tensor) -> Callable[[], object]:
    labels = torch.zeros(len(images), dtype=torch.int64)

    def run() -> object:
        point = images.clone().requires_grad_()
        return torch.autograd.grad(nn.functional.cross_entropy(model(point), labels), point)

    return run


def _operations(model: nn.Module, images: Tensor) -> int:
    """Floating-point operations of an input gradient."""
    point = images.clone().requires_grad_()
    with FlopCounterMode(display=False) as counter:
        model(point).sum().backward()
    return int(counter.get_total_flops())


def test_input_gradients_against_products(race: Any, note: Any, reference: Any) -> None:
    """Two limits: ``torch.mm`` of large matrices, and the fastest product here, a wide convolution by oneDNN.

    They differ where the library behind ``torch.mm`` does not use the widest instructions of the processor.
    """
    ensemble, images, _ = reference(100)
    one, other = torch.rand(2, 1024, 1024)
    wide = torch.rand(8, 256, 16, 16).to(memory_format=torch.channels_last)
    kernel = torch.rand(256, 256, 3, 3).to(memory_format=torch.channels_last)
    with prepared(ensemble):
        fast = accelerated(ensemble, images)
        operations = {
            "gradients": _operations(fast, images),
            "torch.mm": 2 * 1024**3,
            "wide convolution": 2 * 8 * 16 * 16 * 256 * 256 * 9,
        }
        contestants = {
            "gradients": _gradient(fast, images),
            "torch.mm": lambda: one @ other,
            "wide convolution": lambda: nn.functional.conv2d(wide, kernel, padding=1),
        }
        case = "3 × ResNet-20, batch 100"
        medians = race(case, contestants, rounds=7)
    rates = {name: count / medians[name] / 1e9 for name, count in operations.items()}
    for name, rate in rates.items():
        note(case, f"operations of {name}", rate, "GFLOP/s")
    note(case, "gradients, images", 100 / medians["gradients"], "images/s")
    note(case, "rate of gradients over torch.mm", rates["gradients"] / rates["torch.mm"], "times", "≥ 0.9")
    share = rates["gradients"] / rates["wide convolution"]
    note(case, "rate of gradients over the fastest product", share, "times", "≥ 0.9")


class VGG(nn.Module):
    """A network that is not ours: plain convolutions with batch norm, and a view of all pixels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        inputs = 3
        for outputs in (width, 2 * width, 4 * width):
            for _ in range(2):
                parts += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
                inputs = outputs
            parts.append(nn.MaxPool2d(2))
        self.features, self.head = nn.Sequential(*parts), nn.Linear(4 * width * 16, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("whose", ["reference ensemble", "VGG from outside"])
def test_a_whole_evaluation_against_torchattacks(race: Any, note: Any, reference: Any, whose: str) -> None:
    """``evaluate`` checks the model and its copy, judges clean and adversarial images; torchattacks only attacks."""
    model, images, labels = reference(128)
    if whose != "reference ensemble":
        torch.manual_seed(0)
        model = VGG().train()
        with torch.no_grad():
            model(images)
        model.eval()
        labels = model(images).argmax(-1)
    with prepared(model):
        fast = accelerated(model, images)
    assert fast is not model

    def attack(attacked: nn.Module) -> Callable[[], object]:
        return lambda: torchattacks.BIM(attacked, eps=0.03, alpha=0.003, steps=10)(images.clone(), labels)

    contestants = {
        "evaluate": lambda: evaluate(model, images, labels, ["bim(eps=0.03)"], batch_size=128),
        "torchattacks": attack(model),
        "torchattacks on the fast copy": attack(fast),
    }
    case = f"{whose}, bim 10 steps, 128 images"
    medians = race(case, contestants, rounds=3)
    note(case, "speed of evaluate over bare torchattacks", medians["torchattacks"] / medians["evaluate"], "times")
    alone = medians["torchattacks"] / medians["torchattacks on the fast copy"]
    note(case, "speed of the fast copy alone", alone, "times")
