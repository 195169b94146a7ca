"""The compute device: the device that the user names, or the best available one."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from defenses.errors import BadInput
from defenses.members.subnormals import subnormals_as_zero

MOST_THREADS = 4096


def accelerators() -> list[torch.device]:
    """All accelerators that PyTorch sees here; they have one type: CUDA (also ROCm), MPS, XPU or a plug-in."""
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    return [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]


def find_device(name: str) -> torch.device:
    """The device of a name; ``auto`` is an accelerator if there is one, and ``cuda`` is the first CUDA device."""
    there = accelerators()
    if name == "auto":
        return torch.device(there[0].type if there else "cpu")
    kinds = ["auto", "cpu", *(there[0].type for _ in there[:1])]
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"unknown device {name!r}; write {' or '.join(kinds)}") from None
    if device.type not in kinds:
        raise BadInput(f"PyTorch has no device {name!r} on this machine; write {' or '.join(kinds)}")
    if device.type != "cpu" and device.index is not None and device not in there:
        raise BadInput(f"PyTorch has no device {name!r} on this machine; write {' or '.join(map(str, there))}")
    return device


def present(device: torch.device) -> torch.device:
    """The device, or the CPU if this machine lacks it: a cluster may have GPUs while its driver has none."""
    return device if device.type in ("cpu", *(one.type for one in accelerators())) else torch.device("cpu")


def set_threads(threads: int | None, usual: Iterable[int | None] = ()) -> None:
    """Set the number of CPU threads per operation; by default the ``usual`` number, if all datasets have the same.

    Operations on tiny images take microseconds: a second thread gains nothing, and on a busy machine the threads wait
    for each other many times longer than they work.
    """
    wanted = set(usual)
    if threads is None and len(wanted) == 1:
        (threads,) = wanted
    if threads is not None:
        if not 1 <= threads <= MOST_THREADS:
            raise BadInput(f"threads is {threads}; it must lie between 1 and {MOST_THREADS}")
        torch.set_num_threads(threads)
    with subnormals_as_zero():
        torch.ones(2**20).add_(1)  # starts PyTorch's other threads here, so that they too treat subnormals as zero
