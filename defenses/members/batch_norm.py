"""Batch norm whose second derivative is as fast as its first, for objectives with input gradients (GAL, TRS).

PyTorch composes this second derivative of about thirty operations, which take half of the time of GAL. With batch
statistics, the normalised input is x̂ = (x − μ)·r, and the gradient of the input is dx = γ·r·P(g), where

    P(g) = g − mean(g) − x̂·mean(g·x̂).

For a gradient u of dx, with s = mean(g·x̂), t = mean(u·x̂) and A = Σ u·P(g), the gradients are

    of g:  γ·r·P(u)        of γ:  r·A        of x:  −γ·r·(s·r·P(u) + t·r·P(g)) − γ·A·r²·x̂/M.

PyTorch's own backward pass computes r·P and both sums in one pass over the data. A third derivative is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

_wanted = ContextVar("_wanted", default=False)
_backward: Any = torch.ops.aten.native_batch_norm_backward
"""Arguments: gradient, input, γ, running averages, mean, r, training, eps, mask. Gives the gradients of input, γ, β."""


@contextmanager
def fast_second_derivative() -> Iterator[None]:
    """Inside, passes in training on a CPU are prepared for a fast second derivative; elsewhere nothing changes."""
    before = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(before)


class BatchNorm2d(nn.BatchNorm2d):
    """PyTorch's batch norm, which :func:`fast_second_derivative` prepares for objectives with input gradients."""

    def forward(self, input: Tensor) -> Tensor:
        one_value = input.numel() <= self.num_features  # PyTorch refuses it, or knows an empty batch
        if not (_wanted.get() and self.training and self.affine) or one_value or input.device.type != "cpu":
            return super().forward(input)
        self._check_input_dim(input)
        tracked = self.track_running_stats and self.num_batches_tracked is not None
        if self.momentum is None and tracked:
            return super().forward(input)
        if tracked:
            self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        running = (self.running_mean, self.running_var) if tracked else (None, None)
        settings = (*running, self.momentum or 0.0, self.eps)
        return _Normalised.apply(input, self.weight, self.bias, *settings)[0]  # type: ignore[no-untyped-call]


class _Normalised(torch.autograd.Function):
    """γ·x̂ + β with the statistics of the batch, then these: the mean and r."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, *settings: Any) -> tuple[Tensor, ...]:
        mean, variance, momentum, eps = settings
        return torch.native_batch_norm(x, weight, bias, mean, variance, True, momentum, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, *_, ctx.eps = inputs
        ctx.save_for_backward(x, weight, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        found = _Gradient.apply(gradient, *ctx.saved_tensors, ctx.eps)  # type: ignore[no-untyped-call]
        return *found, None, None, None, None


class _Gradient(torch.autograd.Function):
    """The gradients of the input, γ and β."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        gradient, x, weight, mean, scale, eps = given
        return _backward(gradient, x, weight, None, None, mean, scale, True, eps, [True, True, True])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *saved, ctx.eps = inputs
        ctx.save_for_backward(*saved)

    @staticmethod
    def backward(ctx: Any, up: Tensor, up_weight: Tensor, up_bias: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("a third derivative needs a pass outside fast_second_derivative()")
        gradient, x, weight, mean, scale = ctx.saved_tensors
        count = x.numel() // x.shape[1]

        def projected(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """r·P(values), mean(values·x̂) and mean(values)."""
            found, with_x, alone = _backward(
                values, x, torch.ones_like(mean), None, None, mean, scale, True, ctx.eps, [True, True, True]
            )
            return found, with_x / count, alone / count

        of_up, t, up_mean = projected(up)
        of_gradient, s, gradient_mean = projected(gradient)
        zero = torch.zeros_like(mean)
        product = _backward(  # Σ u·g
            up, gradient, zero + 1, None, None, zero, zero + 1, True, ctx.eps, [False, True, False]
        )[1]
        a = product - count * (up_mean * gradient_mean + t * s)
        slope = -weight * a * scale**3 / count

        def along(values: Tensor) -> Tensor:
            return values.to(x.dtype)[:, None, None]

        to_gradient = of_up * along(weight)
        to_x = of_up * along(-weight * scale * s)
        to_x.addcmul_(of_gradient, along(up_weight - weight * scale * t))
        to_x.addcmul_(x, along(slope)).sub_(along(slope * mean))
        to_gradient.addcmul_(x, along(up_weight * scale)).add_(along(up_bias - up_weight * scale * mean))
        return to_gradient, to_x, scale * a, None, None, None
