"""Check before the first attack that a model can be evaluated: its output, its classes and its gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmark.harness.prepared import is_random
from defenses.errors import BadInput


def _output(model: nn.Module, images: Tensor) -> Tensor:
    """The logits of the model for some images; BadInput if the model fails or the shape is wrong."""
    try:
        output = model(images.clone())  # a model may change its input in place
    except BadInput:
        raise
    except Exception as error:
        words = (str(error).strip() or type(error).__name__).splitlines()[-1]  # TorchScript puts the cause last
        what = f"{len(images)} images of shape {tuple(images.shape[1:])}"
        raise BadInput(f"the model fails on {what} ({words:.200}); {_remedy(model, images, words)}") from error
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(images):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise BadInput(f"the model gives {shape} for {len(images)} images; it must give logits of shape (N, classes)")
    return output


def _remedy(model: nn.Module, images: Tensor, words: str) -> str:
    """The remedy for a model that fails on images: precision, device or batch size."""
    tensors = [*model.parameters(), *model.buffers()]
    other = {tensor.dtype for tensor in tensors if tensor.is_floating_point()} - {images.dtype}
    if other:
        names = " and ".join(sorted(map(str, other)))
        return f"the images are {images.dtype}, its weights {names}: give model.float(), or convert the images inside"
    if "device" in words:
        return f"the images are on {images.device}: make every tensor of the model a parameter or a buffer"
    try:
        model(images[:1].clone())
    except Exception:
        return "give a model that accepts these images in batches of any size"
    return "it accepts 1 image: give a model that accepts batches of any size, or set batch_size= to its size"


@torch.no_grad()
def batch_outputs(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    """The outputs of the model for images, (N, L), on the CPU; BadInput if the model fails on a batch."""
    return torch.cat([_output(model, part).cpu() for part in images.split(batch_size)])


def check_outside(model: nn.Module, images: Tensor, classes: int) -> None:
    """Check that an external model fits the dataset, accepts any batch size, and has gradients."""
    found = check_model(model, images, torch.zeros(0, dtype=torch.int64))
    if found != classes:
        raise BadInput(f"the model gives {found} classes; the dataset has {classes}; choose another model or dataset")
    few = images[:3].detach().clone().requires_grad_()
    with torch.enable_grad():
        output = _output(model, few)
        if not output.requires_grad:
            raise BadInput("the model's output has no gradient to the images; remove detach or no_grad from the model")
        try:
            torch.autograd.grad(output.sum(), few)
        except RuntimeError as error:
            words = str(error).partition("\n")[0]
            raise BadInput(
                f"the model's output has no gradient to the images: {words}; use only differentiable operations"
            ) from error
    with torch.no_grad():
        same = torch.allclose(output, _output(model, images)[:3], rtol=1e-3, atol=1e-3)
        if not same and not is_random(model, images):
            raise BadInput(
                "the model's output for an image depends on the other images of its batch; save it in evaluation mode"
            )


@torch.no_grad()
def check_model(model: nn.Module, images: Tensor, labels: Tensor) -> int:
    """Check that the model gives finite logits, and return the number of classes."""
    probe = images[:8]
    output = _output(model, probe)
    if not torch.isfinite(output).all():
        raise BadInput(
            "the model gives logits that are not finite; check its weights and its normalisation of the images"
        )
    if ((output >= 0) & (output <= 1)).all() and torch.allclose(
        output.sum(-1), torch.ones(len(output)).to(output), atol=1e-4
    ):
        raise BadInput(
            "the model gives probabilities; attacks expect logits and fail on probabilities; "
            "return logits or log-probabilities instead"
        )
    classes = output.shape[-1]
    if classes < 2:
        raise BadInput("the model gives one number per image; for two classes, give two logits, such as (0, z)")
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        wrong = int(labels.max()) if int(labels.max()) >= classes else int(labels.min())
        raise BadInput(f"label {wrong} is out of range; the model has classes 0 to {classes - 1}")
    return classes
