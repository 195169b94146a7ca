"""Several processes train one ensemble, each on its share of every batch, with the result of one process.

``torchrun`` starts the processes and describes them in environment variables. In a single process, every function here
returns the plain result without communication.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from defenses.errors import BadInput
from defenses.members.doubles import in_float64

Draw = Callable[..., Tensor]
"""`torch.rand` or another function of a shape and a generator."""


@contextmanager
def joined(device: torch.device) -> Iterator[torch.device]:
    """Connect the processes that torchrun started: gloo for CPUs, nccl for NVIDIA GPUs. Yield this process's device."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield device
        return
    try:
        backend = dist.get_default_backend_for_device(device)
    except ValueError:
        words = f"several processes cannot train together on {device.type}; use --device cpu, or one process"
        raise BadInput(words) from None
    if device.type != "cpu":
        if device == torch.device(device.type):  # no device number was given
            device = torch.device(device.type, int(os.environ["LOCAL_RANK"]))
        torch.get_device_module(device).set_device(device)
        backend = f"cpu:gloo,{device.type}:{backend}"  # small counts are sent between the CPUs
    dist.init_process_group(backend)
    try:
        yield device
    finally:
        dist.destroy_process_group()


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process; process 0 writes the files and shows the progress."""
    return dist.get_rank() if world_size() > 1 else 0


def share(rows: Tensor) -> Tensor:
    """This process's part of a batch: the parts are consecutive, and each begins at an even index.

    A defense that treats every other image differently therefore treats the same images as in one process. A part can
    be empty, except the first.
    """
    count, processes = len(rows), world_size()
    starts = [min(2 * -(-count * index // (2 * processes)), count) for index in range(processes + 1)]
    return rows[starts[rank()] : starts[rank() + 1]]


def drawn(draw: Draw, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Random numbers, a row per image: the same rows that a single process would draw for these images."""
    if world_size() == 1:
        return draw(tuple(shape), generator=generator)
    counts = _counts(shape[0])
    first = sum(counts[: rank()])
    return draw((sum(counts), *shape[1:]), generator=generator)[first : first + shape[0]]


def row_before(values: Tensor) -> Tensor:
    """For every image, the row of the previous image in the whole batch; for the first image, the row of the last."""
    if world_size() == 1:
        return values.roll(1, 0)
    counts = _counts(len(values))
    last = values[-1:].contiguous() if len(values) else values.new_zeros((1, *values.shape[1:]))
    lasts = [torch.empty_like(last) for _ in counts]
    dist.all_gather(lasts, last)
    earlier = [(rank() - distance) % len(counts) for distance in range(1, len(counts) + 1)]
    previous = next(index for index in earlier if counts[index])
    return torch.cat([lasts[previous], values[:-1]])[: len(values)]


def summed(values: Tensor) -> Tensor:
    """The sum over all processes; it is differentiable any number of times, with gradients for every process."""
    return values if world_size() == 1 else cast(Tensor, _Sum.apply(values))  # type: ignore[no-untyped-call]


def from_first(values: Tensor) -> Tensor:
    """The tensor of process 0; the other processes pass a tensor of the same shape and type."""
    if world_size() > 1:
        dist.broadcast(values, src=0)
    return values


def bytes_from_first(data: bytes | None) -> bytes | None:
    """The bytes that process 0 read from a file; the other processes do not need that file."""
    if world_size() == 1:
        return data
    size = int(from_first(torch.tensor(-1 if data is None else len(data))))
    if size <= 0:
        return None if size < 0 else b""
    sent = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(size, dtype=torch.uint8)
    return from_first(sent).numpy().tobytes()


def average_gradients(optimiser: torch.optim.Optimizer) -> None:
    """Average the gradients over all processes before every step of the optimiser."""
    if world_size() > 1:
        optimiser.register_step_pre_hook(_average)


def share_batch_norm(module: nn.Module) -> None:
    """Replace batch norm layers by layers that use the whole batch; weights and statistics stay the same tensors."""
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm):
            setattr(module, name, SharedBatchNorm(child))
        else:
            share_batch_norm(child)


class SharedBatchNorm(_BatchNorm):
    """Batch norm with statistics over the shares of all processes; for any device, and twice differentiable."""

    def __init__(self, like: _BatchNorm) -> None:
        super().__init__(like.num_features, like.eps, like.momentum, like.affine, like.track_running_stats)
        self.weight, self.bias = like.weight, like.bias
        self.running_mean, self.running_var = like.running_mean, like.running_var
        self.num_batches_tracked = like.num_batches_tracked
        self.training = like.training

    def _check_input_dim(self, input: Tensor) -> None:
        """Images, sequences or plain features: the second axis is the channel."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        axes = [axis for axis in range(input.ndim) if axis != 1]
        shape = [1, -1] + [1] * (input.ndim - 2)
        # squares are centred at the running mean, which is near the mean: no cancellation, and one sum is enough
        about = input.new_zeros(self.num_features) if self.running_mean is None else self.running_mean
        away = input - about.view(shape)
        count = input.new_tensor([input.numel() // input.shape[1]])
        sums = summed(in_float64(torch.cat([away.sum(axes), away.square().sum(axes), count])))
        total = sums[-1].detach()
        offset, square = (sums[:-1] / total).view(2, -1)
        variance = (square - offset.square()).clamp_min(0)
        if self.track_running_stats:
            self._track(offset + about.to(offset.device), variance * total / (total - 1))
        scale = (variance + self.eps).rsqrt().to(input)
        if self.weight is not None:
            scale = scale * self.weight
        shift = -offset.to(input) * scale
        if self.bias is not None:
            shift = shift + self.bias
        return away * scale.view(shape) + shift.view(shape)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        new = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), new)
        self.running_var.lerp_(variance.to(self.running_var), new)


class _Sum(torch.autograd.Function):
    """All-reduce. Every process's result depends on every process's input, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        result = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return cast(Tensor, _Sum.apply(gradients[0]))  # type: ignore[no-untyped-call]


def _counts(count: int) -> list[int]:
    """The number of images of each process."""
    counts = torch.zeros(world_size(), dtype=torch.int64)
    counts[rank()] = count
    dist.all_reduce(counts)
    return counts.tolist()


def _average(optimiser: torch.optim.Optimizer, *_: Any) -> None:
    gradients = [p.grad for group in optimiser.param_groups for p in group["params"] if p.grad is not None]
    if not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = (flat / world_size()).split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
