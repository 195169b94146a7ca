"""Prepare a model for evaluation: evaluation mode, frozen weights, full precision; afterwards it is restored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from defenses.members.combination import Random
from defenses.members.diversity import log_mean_probability
from defenses.members.ensemble import Ensemble, evaluation_mode
from defenses.members.subnormals import subnormals_as_zero

DRAWS = 20
"""Number of predictions per image for a model with random output."""
NO_CLASS = -1
"""Predicted class for an output with NaN."""


@contextmanager
def prepared(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, frozen weights and no subnormal numbers inside the block; afterwards the model is restored."""
    parameters = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    with evaluation_mode(model), subnormals_as_zero(), _full_precision(), _usual_numbers():
        for parameter, _ in parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter, wanted in parameters:
                parameter.requires_grad_(wanted)


@contextmanager
def _usual_numbers() -> Iterator[None]:
    """Float32 as the default type, and gradients enabled, whatever the caller has set."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Full float32 precision inside the block: GPUs may round the inputs of convolutions to TF32 (ten bits)."""
    backends: Any = torch.backends
    full: bool | str
    places, name, full = [backends.cudnn, backends.cuda.matmul], "allow_tf32", False  # torch before 2.9
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        places = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
        places += [backends.mkldnn.matmul, backends.mkldnn.conv]
        name, full = "fp32_precision", "ieee"
    before = [getattr(place, name) for place in places]
    try:
        for place in places:
            setattr(place, name, full)
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            setattr(place, name, value)


@torch.no_grad()
def predict(model: nn.Module, images: Tensor, batch_size: int) -> NDArray[np.int64]:
    """Predicted classes, (N,); see `predicted`."""
    return predicted(outputs(model, images, batch_size))


def predicted(output: Tensor) -> NDArray[np.int64]:
    """Predicted classes of outputs (N, L) on the CPU; an output with NaN has the class -1."""
    classes = output.argmax(-1)
    return classes.masked_fill(output.isnan().any(-1), NO_CLASS).numpy()


@torch.no_grad()
def answers(
    model: nn.Module, images: Tensor, labels: NDArray[np.int64], batch_size: int, draws: int = 1
) -> tuple[Tensor, NDArray[np.float64]]:
    """The expected output of a model, (N, L), and the probability that its prediction is correct, (N,).

    For a deterministic model, the probability is 0 or 1. For a randomised ensemble, it is exact. For a model with
    random output, it is the share of correct predictions among the ``draws``.
    """
    rule = model.combination if isinstance(model, Ensemble) else None
    if isinstance(rule, Random):
        logits = torch.cat([model.member_logits(part.clone()).cpu() for part in images.split(batch_size)], dim=1)  # type: ignore[operator]
        return rule.combine(logits), rule.probability_right(logits, torch.from_numpy(labels)).numpy()
    drawn = torch.stack([outputs(model, images, batch_size) for _ in range(draws)])
    right = np.mean([predicted(one) == labels for one in drawn], axis=0)
    return (drawn[0] if draws == 1 else log_mean_probability(drawn)), right


@torch.no_grad()
def is_random(model: nn.Module, images: Tensor) -> bool:
    """Whether the model gives two different outputs for the same images, beyond rounding."""
    once, again = (outputs(model, images, len(images)) for _ in range(2))
    return not torch.isclose(once, again, rtol=1e-3, atol=1e-4, equal_nan=True).all()


@torch.no_grad()
def outputs(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    """The outputs of the model for images, (N, L), on the CPU."""
    parts = (part.clone() for part in images.split(batch_size))  # a model may change its input in place
    return torch.cat([model(part).cpu() for part in parts])
