"""Whether this machine computes in bfloat16: some processors announce it and stop the program when it is used."""

from __future__ import annotations

import functools
import subprocess
import sys

import torch

from defenses.errors import BadInput

PROBE = """
import torch
layer = torch.nn.Conv2d(16, 16, 3, padding=1)
with torch.autocast("cpu", torch.bfloat16):
    layer(torch.randn(8, 16, 8, 8)).float().sum().backward()
"""
"""Runs in a process of its own, since an illegal instruction cannot be caught."""


def require_bfloat16(device: torch.device, instead: str = "--precision float32") -> None:
    """Refuse where a convolution in bfloat16, forwards and backwards, does not work; ``instead`` is the remedy."""
    if not (_works_on_cpu(PROBE) if device.type == "cpu" else _works_on(device)):
        raise BadInput(f"bfloat16 does not work on this {device.type}; use {instead}")


@functools.cache
def _works_on_cpu(probe: str) -> bool:
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode == 0


def _works_on(device: torch.device) -> bool:
    """What the accelerator says of itself; one that says nothing is tried out."""
    says = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    if says is not None:
        return bool(says())
    try:
        layer = torch.nn.Conv2d(16, 16, 3, padding=1).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            layer(torch.randn(8, 16, 8, 8).to(device)).float().sum().backward()
    except Exception:  # whatever the plug-in of a device may raise
        return False
    return True
