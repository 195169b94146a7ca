"""Whether this machine computes in bfloat16: some processors announce it and stop the program when it is used."""

from __future__ import annotations

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


def require_bfloat16(device: torch.device) -> None:
    """Refuse where a convolution in bfloat16, forwards and backwards, does not work."""
    if device.type == "cpu":
        works = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False).returncode == 0
    else:
        works = _works_on(device)
    if not works:
        raise BadInput(f"bfloat16 does not work on this {device.type}; use --precision float32")


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
