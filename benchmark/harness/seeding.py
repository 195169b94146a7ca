"""Seeds: random draws depend on a seed, and every generator is restored afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from benchmark.attacks.attacked import number_from
from benchmark.machine.devices import accelerators


@contextmanager
def seeded(seed: int, what: str, first: int) -> Iterator[None]:
    """Seed every generator that an attack library may use, and restore all of them afterwards."""
    number = number_from(seed, what, first)
    python, numpy = random.getstate(), np.random.get_state()
    there = accelerators()
    with torch.random.fork_rng(devices=range(len(there)), device_type=there[0].type if there else "cuda"):
        random.seed(number)
        np.random.seed(number % 2**32)
        torch.manual_seed(number)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
