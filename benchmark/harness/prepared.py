"""A model made ready to be judged: evaluation mode, frozen weights, full precision; afterwards it is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from defenses.members.ensemble import evaluation_mode
from defenses.members.subnormals import subnormals_as_zero

NO_CLASS = -1
"""What a model predicts whose output is not a number."""


@contextmanager
def prepared(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, frozen weights and no subnormal numbers inside; afterwards the model is as it was."""
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
    """Float32 by default, and gradients where they are asked for, whatever the caller has set."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Float32 means float32 inside: GPUs would shorten the inputs of convolutions to TF32's ten bits."""
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
    """Predicted classes of outputs (N, L) on the CPU; an output with NaN predicts nothing, which is -1."""
    classes = output.argmax(-1)
    return classes.masked_fill(output.isnan().any(-1), NO_CLASS).numpy()


@torch.no_grad()
def outputs(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    """What the model gives for images, (N, L), on the CPU."""
    parts = (part.clone() for part in images.split(batch_size))  # a model may write into what it is given
    return torch.cat([model(part).cpu() for part in parts])
