"""The machine and the commit of the code that computed a result."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def describe_machine() -> dict[str, str | int]:
    """Processor, cores, threads and GPUs; nothing that identifies a person or a host."""
    import torch

    from benchmark.machine.devices import accelerators

    machine: dict[str, str | int] = {
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
    }
    for index, device in enumerate(accelerators()):
        name = getattr(torch.get_device_module(device), "get_device_name", None)  # MPS has none
        machine[f"gpu{index}"] = name(index) if name else device.type.upper()
    return machine


WORKER_BYTES = 2**30
"""Memory reserved for a worker process. Python with PyTorch and the attack libraries takes half of it; the rest is for
the worker's copy of the ensemble, the images and a batch."""


def room_for_workers(threads: int) -> int:
    """The number of worker processes with ``threads`` threads that fit into the cores and the memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on every system
        memory = cores * WORKER_BYTES
    return max(1, min(cores // threads, memory // WORKER_BYTES))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str:
    """Commit of the source tree, marked ``-dirty`` if the code has changes; empty for an installed package.

    Results that a run writes into the tree do not count as changes.
    """
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # inside another repository, git would give the commit of that one
        return ""
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", "benchmark", "defenses")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{head}-dirty" if changed else head


def _git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
