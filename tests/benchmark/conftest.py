"""A tiny ensemble trained once on the digits data: attacks on it behave like attacks, and take no time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmark import datasets
from benchmark.training import train_ensemble
from defenses.checkpoints import load_checkpoint
from defenses.ensemble import Ensemble


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a baseline of two small members, right on most test images."""
    changes = {"epochs": 4, "train_images": 800, "learning_rate": 0.01}
    out = tmp_path_factory.mktemp("trained") / "small"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train_ensemble("baseline", "digits", "mini-resnet(width=4)", 2, changes=changes, out=out, device="cpu")
    torch.set_num_threads(threads)
    return out


@pytest.fixture
def ensemble(checkpoint: Path) -> Ensemble:
    return load_checkpoint(checkpoint)


@pytest.fixture(scope="session")
def digits() -> tuple[Tensor, Tensor]:
    """Test images in [0, 1] and their labels."""
    test = datasets.load("digits").test
    return test.images(), test.labels
