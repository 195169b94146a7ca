"""A tiny ensemble trained once on the digits data: attacks on it behave like attacks, and take no time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from benchmark import datasets
from benchmark.cells import Cell
from benchmark.store import Store
from benchmark.training import train_ensemble
from defenses.checkpoints import load_checkpoint
from defenses.members.ensemble import Ensemble


@pytest.fixture(autouse=True)
def _no_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ensembles that come with the project are found by tests that work in its folder alone."""
    monkeypatch.setattr("benchmark.ensembles.BESIDE", Path("nowhere"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that nothing is written beside the sources."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a baseline of two small members, right on most test images."""
    return _train("baseline", 4, tmp_path_factory.mktemp("trained") / "small")


@pytest.fixture(scope="session")
def robust_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of two small members trained on adversarial images: right more often under attack."""
    return _train("advt-pgd", 4, tmp_path_factory.mktemp("trained") / "robust")


def _train(defense: str, epochs: int, out: Path) -> Path:
    changes = {"epochs": epochs, "train_images": 800, "learning_rate": 0.01}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train_ensemble(defense, "digits", "mini-resnet(width=4)", 2, changes=changes, out=out, device="cpu")
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


@pytest.fixture
def make_cell() -> Callable[..., Cell]:
    """A cell of digits by its evaluation, defense and attack; whatever else matters to a test is named by it."""

    def make(evaluation: str, defense: str = "ours", attack: str = "none", **others: Any) -> Cell:
        settings = others.setdefault("settings", {"eps": 0.1} if attack != "none" else {})
        given: dict[str, Any] = {
            "dataset": "digits",
            "data_checksum": "0" * 64,
            "spec": defense,
            "members": 2,
            "network": "mini-resnet",
            "training": "fast recipe, 12 epochs, seed 0",
            "weights": f"weights of {defense}",
            "parameters": ",".join(f"{key}={value}" for key, value in settings.items()),
            "library": "none" if attack == "none" else "torchattacks",
            "library_version": "" if attack == "none" else "3.5.1",
            "tier": "clean" if attack == "none" else "strict",
            "samples": 50,
            "seed": 0,
            "batch_size": 50,
            "device": "cpu",
        }
        return Cell(evaluation=evaluation, defense=defense, attack=attack, **{**given, **others})

    return make


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[[Sequence[tuple[Cell, dict[str, Any]]]], Store]:
    """A run folder of finished cells; a cell's records have the columns given, beside those that every record has."""

    def make(finished: Sequence[tuple[Cell, dict[str, Any]]]) -> Store:
        store = Store(tmp_path / "run")
        store.open("demo")
        cells = [cell.asked() for cell, _ in finished]
        store.write_manifest({"preset": "demo", "title": "By hand", "commands": [], "cells": cells})
        for cell, columns in finished:
            usual: dict[str, Any] = {"index": np.arange(cell.samples), "label": 3, "clean_prediction": 3}
            usual |= {"attacked": cell.attack != "none", "correct": True, "forwards": 1.0, "backwards": 1.0}
            usual |= {"seconds": 0.001, "batch_size": cell.batch_size}
            usual |= dict.fromkeys(("unmoved", "not_finite", "out_of_box", "out_of_ball", "zero_gradient"), False)
            store.write(cell, pd.DataFrame({**usual, **columns}))
        return store

    return make
