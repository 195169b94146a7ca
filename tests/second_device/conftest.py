"""These tests are collected in the process that ``tests/test_second_device.py`` starts, where the device is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

IN_ITS_PROCESS = "ADP_BENCH_TESTED_DEVICES"
"""Says how many second devices the process has."""
collect_ignore_glob: list[str] = []

if os.environ.get(IN_ITS_PROCESS):
    from tests.second_device.device import register

    register(int(os.environ[IN_ITS_PROCESS]))
else:
    collect_ignore_glob.append("test_*.py")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and no ensembles but those of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("benchmark.ensembles.folders.BESIDE", Path("nowhere"))
    return tmp_path


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of two small members trained on the CPU, right on most test images."""
    return _trained("baseline", 0, tmp_path_factory)


@pytest.fixture(scope="session")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another such ensemble: a surrogate, or one to compare with."""
    return _trained("adp-2-0.5", 1, tmp_path_factory)


def _trained(defense: str, seed: int, factory: pytest.TempPathFactory) -> Path:
    from benchmark.ensembles.ensemble_request import EnsembleRequest
    from benchmark.ensembles.training import train_ensemble

    out = factory.mktemp("trained") / defense
    changes = {"epochs": 4, "train_images": 800, "learning_rate": 0.01}
    request = EnsembleRequest(defense, "digits", "mini-resnet(width=4)", 2, seed=seed)
    train_ensemble(request, changes, out=out, device="cpu", threads=1)
    return out
