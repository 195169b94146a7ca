"""Treat subnormal float32 numbers as zero: a CPU computes with them a hundred times slower than with others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def subnormals_as_zero() -> Iterator[None]:
    """Inside, results below 1.2e-38 become 0 in this thread of the CPU; afterwards they are treated as they were.

    Weight decay shrinks the filters of dead channels without end, and what goes through them becomes subnormal:
    training and attacks ran at half to a third of their speed. PyTorch's other threads do as the thread did that
    started them, for good; `benchmark.devices.set_threads` starts them inside.
    """
    before = torch.tensor(1e-40).mul(1).item() == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
