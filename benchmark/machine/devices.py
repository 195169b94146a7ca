"""Where tensors live: the device a user named, or the best one there is."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from defenses.errors import BadInput
from defenses.members.subnormals import subnormals_as_zero

MOST_THREADS = 4096


def find_device(name: str) -> torch.device:
    """``auto`` takes a GPU when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"unknown device {name!r}; write auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"device {name!r} was asked for, but PyTorch sees no GPU here; use --device cpu")
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"device {name!r} is not supported; write auto, cpu or cuda")
    return device


def present(device: torch.device) -> torch.device:
    """The device, or the CPU where this machine lacks it: a cluster may have GPUs that its driver has not."""
    return device if device.type != "cuda" or torch.cuda.is_available() else torch.device("cpu")


def set_threads(threads: int | None, usual: Iterable[int | None] = ()) -> None:
    """Use so many CPU threads inside each operation; unless told, what is ``usual`` for all of the datasets.

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
