"""Treat subnormal float32 numbers as zero, because a CPU is a hundred times slower with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def subnormals_as_zero() -> Iterator[None]:
    """Inside, results below 1.2e-38 become 0 in this thread of the CPU; afterwards, the earlier mode is restored.

    Weight decay shrinks the filters of dead channels without limit, so their outputs become subnormal. Training and
    attacks then ran at half to a third of their speed. PyTorch's other threads permanently keep the mode of the thread
    that started them; `benchmark.machine.devices.set_threads` starts them inside this context.
    """
    before = torch.tensor(1e-40).mul(1).item() == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
