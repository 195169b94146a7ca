"""Where tensors live: the device a user named, or the best one there is."""

from __future__ import annotations

import torch

from defenses.errors import BadInput


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


def set_threads(threads: int | None) -> None:
    """Use so many CPU threads inside each operation."""
    if threads is None:
        return
    if threads < 1:
        raise BadInput(f"threads is {threads}; it must be at least 1")
    torch.set_num_threads(threads)
