"""The model as an attack sees it: in evaluation mode, frozen, with a sound output, and counting its own use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from defenses.ensemble import evaluation_mode
from defenses.errors import BadInput

Output = Literal["log-probabilities", "probabilities"]


class AttackedModel(nn.Module):
    """Wraps a model that gives logits, or an `Ensemble`, for one batch of one attack.

    With ``log-probabilities``, every row is shifted so that its smallest entry is 0: softmax, argmax,
    cross-entropy and margins stay the same, and losses that mask a class by multiplying with 0 work.
    With ``probabilities`` it gives what the paper's L∞ attacks got: averaged probabilities used as logits.
    """

    def __init__(self, model: nn.Module, output: Output = "log-probabilities") -> None:
        super().__init__()
        self.model = model
        self.output_kind = output
        self.forwards = 0
        self.backwards = 0
        self.dead_gradient: Tensor | None = None
        """Rows whose gradient was zero or not finite the first time the attack asked for one."""
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        self.forwards += len(images)
        if images.requires_grad and torch.is_grad_enabled():
            images = images.view_as(images)  # an attack may reuse one tensor: hook each pass, not the tensor
            images.register_hook(self._see_gradient)
        output = self.model(images)
        if self.output_kind == "probabilities":
            return torch.softmax(output, dim=-1)
        return output - output.detach().amin(-1, keepdim=True)

    def _see_gradient(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)
        if self.dead_gradient is None:
            size = gradient.detach().flatten(1).abs().amax(1)
            self.dead_gradient = ~(torch.isfinite(size) & (size > 0))


@contextmanager
def prepared(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and frozen weights inside; afterwards the model is as it was."""
    parameters = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    with evaluation_mode(model):
        for parameter, _ in parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter, wanted in parameters:
                parameter.requires_grad_(wanted)


@torch.no_grad()
def predict(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    """Predicted classes, (N,), on the CPU."""
    return torch.cat([model(part).argmax(-1).cpu() for part in images.split(batch_size)])


@torch.no_grad()
def check_model(model: nn.Module, images: Tensor, labels: Tensor) -> int:
    """Make sure that the model gives finite logits, twice the same; the number of classes."""
    probe = images[:8]
    output = model(probe)
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(probe):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise BadInput(f"the model gives {shape} for {len(probe)} images; it must give logits of shape (N, classes)")
    if not torch.isfinite(output).all():
        raise BadInput("the model gives outputs that are not finite; give one whose logits are")
    if ((output >= 0) & (output <= 1)).all() and torch.allclose(
        output.sum(-1), torch.ones(len(output)).to(output), atol=1e-4
    ):
        raise BadInput(
            "the model gives probabilities, on which attacks built for logits saturate and fail; "
            "return logits or log-probabilities instead"
        )
    if not torch.equal(output, model(probe)):
        raise BadInput("the model gives two different outputs for the same images; make it deterministic in eval mode")
    classes = output.shape[-1]
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        wrong = int(labels.max()) if int(labels.max()) >= classes else int(labels.min())
        raise BadInput(f"label {wrong} is out of range; the model has classes 0 to {classes - 1}")
    return classes
