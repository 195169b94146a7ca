"""The model as an attack sees it: in evaluation mode, frozen, with a sound output, and counting its own use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from defenses.errors import BadInput
from defenses.members.ensemble import evaluation_mode
from defenses.members.subnormals import subnormals_as_zero

Output = Literal["log-probabilities", "probabilities"]


class AttackedModel(nn.Module):
    """Wraps a model that gives logits, or an `Ensemble`, for one batch of one attack.

    With ``log-probabilities``, every row is shifted so that its smallest entry is 0: softmax, argmax,
    cross-entropy and margins stay the same, and losses that mask a class by multiplying with 0 work.
    With ``probabilities`` it gives what the paper's L∞ attacks got: averaged probabilities used as logits.
    """

    def __init__(
        self,
        model: nn.Module,
        output: Output = "log-probabilities",
        draws: Sequence[object] | None = None,
        clean: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.output_kind = output
        self.draws = draws
        """Something that is the image's own, for every image of the batch: seeds what `uniform` draws for it."""
        self.forwards = 0
        self.backwards = 0
        self.dead_gradient: Tensor | None = None
        """Rows whose gradient was zero or not finite the first time the attack asked for one."""
        self.clean = clean
        self.left = None if clean is None else clean.new_zeros(len(clean), dtype=torch.bool)
        """Rows of ``clean`` that the attack ever showed the model changed."""
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        counted = self._counted(images)
        output = _attached(self.model(counted), counted)
        if self.output_kind == "probabilities":
            return torch.softmax(output, dim=-1)
        return output - output.detach().amin(-1, keepdim=True)

    def member_logits(self, images: Tensor) -> Tensor:
        """Logits of every member, (K, N, L), for attacks that are made for ensembles; any other model is one member."""
        member_logits = getattr(self.model, "member_logits", None)
        counted = self._counted(images)
        return _attached(member_logits(counted) if callable(member_logits) else self.model(counted)[None], counted)

    def uniform(self, chosen: Tensor, shape: Sequence[int], key: int) -> Tensor:
        """Numbers in [0, 1), on the CPU, for the images at these places of the batch; ``key`` tells draws apart.

        What an image gets depends on nothing but the image: not on the batch it is in or on the order of attacks.
        """
        if self.draws is None:
            return torch.rand((len(chosen), *shape))
        generator = torch.Generator()
        drawn = []
        for place in chosen.tolist():
            generator.manual_seed(number_from(self.draws[place], key))
            drawn.append(torch.rand(tuple(shape), generator=generator))
        return torch.stack(drawn)

    def _counted(self, images: Tensor) -> Tensor:
        self.forwards += len(images)
        if self.clean is not None and self.left is not None:
            # a part of the batch may be any part of it: the benefit of the doubt goes to the attack
            whole = images.shape == self.clean.shape
            self.left |= (images.detach() != self.clean).flatten(1).any(1) if whole else True
        if images.requires_grad and torch.is_grad_enabled():
            images = images.view_as(images)  # an attack may reuse one tensor: hook each pass, not the tensor
            images.register_hook(self._see_gradient)
        return images

    def _see_gradient(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)
        if self.dead_gradient is None:
            size = gradient.detach().flatten(1).abs().amax(1)
            self.dead_gradient = ~(torch.isfinite(size) & (size > 0))


def _attached(output: Tensor, images: Tensor) -> Tensor:
    """The output, with a gradient of zero where the model lets none through: a fact to be flagged, not a crash."""
    if images.requires_grad and torch.is_grad_enabled() and not output.requires_grad:
        return output + 0 * images.flatten(1).sum(1, keepdim=True)
    return output


def number_from(*parts: object) -> int:
    """A number below 2⁵⁶ that stands for these parts, the same in every process."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")


def library_seed() -> int:
    """For libraries that seed the global generator themselves: the number the harness has seeded it with."""
    return torch.initial_seed() % 2**31


@torch.no_grad()
def count_classes(model: nn.Module, images: Tensor) -> int:
    """How many classes a model tells apart."""
    return model(images[:1]).shape[-1]


@contextmanager
def prepared(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, frozen weights and no subnormal numbers inside; afterwards the model is as it was."""
    parameters = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    with evaluation_mode(model), subnormals_as_zero(), _full_precision():
        for parameter, _ in parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter, wanted in parameters:
                parameter.requires_grad_(wanted)


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
def predict(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    """Predicted classes, (N,), on the CPU."""
    return outputs(model, images, batch_size).argmax(-1)


@torch.no_grad()
def outputs(model: nn.Module, images: Tensor, batch_size: int) -> Tensor:
    """What the model gives for images, (N, L), on the CPU."""
    return torch.cat([model(part).cpu() for part in images.split(batch_size)])


def _output(model: nn.Module, images: Tensor) -> Tensor:
    """What the model gives for a few images, as logits."""
    try:
        output = model(images)
    except BadInput:
        raise
    except Exception as error:
        words = (str(error).strip() or type(error).__name__).splitlines()[-1]  # TorchScript says the cause last
        raise BadInput(
            f"the model does not take {len(images)} images of shape {tuple(images.shape[1:])} ({words:.200}); "
            "give one that takes batches of any size of them"
        ) from error
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(images):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise BadInput(f"the model gives {shape} for {len(images)} images; it must give logits of shape (N, classes)")
    return output


def check_outside(model: nn.Module, images: Tensor, classes: int) -> None:
    """Make sure that a model of unknown make suits the dataset, batches of any size, and attacks by gradient."""
    found = check_model(model, images, torch.zeros(0, dtype=torch.int64))
    if found != classes:
        raise BadInput(f"the model gives {found} classes; the dataset has {classes}")
    few = images[:3].detach().clone().requires_grad_()
    with torch.enable_grad():
        output = _output(model, few)
        if not output.requires_grad:
            raise BadInput("the model's output has no gradient to the images; give one that does not detach it")
        try:
            torch.autograd.grad(output.sum(), few)
        except RuntimeError as error:
            words = str(error).partition("\n")[0]
            raise BadInput(f"the model's output has no gradient to the images: {words}") from error
    with torch.no_grad():
        if not torch.allclose(output, _output(model, images)[:3], rtol=1e-3, atol=1e-3):
            raise BadInput("the model's output for an image depends on the batch it is in; save it in evaluation mode")


@torch.no_grad()
def check_model(model: nn.Module, images: Tensor, labels: Tensor) -> int:
    """Make sure that the model gives finite logits, twice the same; the number of classes."""
    probe = images[:8]
    output = _output(model, probe)
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
