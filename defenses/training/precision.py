"""A test whether bfloat16 works on this machine: some processors report it, but crash the program when it is used."""

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
"""Runs in a separate process, because an illegal instruction cannot be caught."""


def require_bfloat16(device: torch.device, instead: str = "--precision float32") -> None:
    """Raise BadInput if a bfloat16 convolution, forward and backward, does not work; ``instead`` is the remedy."""
    if not has_bfloat16(device):
        raise BadInput(f"bfloat16 does not work on this {device.type}; use {instead}")


def has_bfloat16(device: torch.device) -> bool:
    """True if a convolution in bfloat16 works, forwards and backwards."""
    return _works_on_cpu(PROBE) if device.type == "cpu" else _works_on(device)


@functools.cache
def _works_on_cpu(probe: str) -> bool:
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode == 0


def _works_on(device: torch.device) -> bool:
    """True if the accelerator reports bfloat16; if it reports nothing, a convolution is tried."""
    says = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    if says is not None:
        return bool(says())
    try:
        layer = torch.nn.Conv2d(16, 16, 3, padding=1).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            layer(torch.randn(8, 16, 8, 8).to(device)).float().sum().backward()
    except Exception:  # the plug-in of a device can raise any error
        return False
    return True
