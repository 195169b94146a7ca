"""A tiny ensemble trained once on the digits data: attacks on it behave like attacks, and take no time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from benchmark import datasets
from benchmark.cells.cell import Cell, Conditions, EnsembleFacts, TestImages
from benchmark.cells.store import Store
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.training import train_ensemble
from benchmark.evaluations.task import Task
from benchmark.findings.results import Results
from benchmark.harness.records import Span
from defenses.checkpoints import FILE_NAME, load_checkpoint, save_checkpoint
from defenses.members.ensemble import Ensemble


@pytest.fixture(autouse=True)
def _no_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ensembles that come with the project are found by tests that work in its folder alone."""
    monkeypatch.setattr("benchmark.ensembles.folders.BESIDE", Path("nowhere"))
    monkeypatch.delenv("ADP_BENCH_CHECKPOINTS", raising=False)


@pytest.fixture(autouse=True)
def _no_workers_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a test may take so long that workers are started, which do not know what it has patched."""
    monkeypatch.setattr("benchmark.run.executors.workers.PATIENCE", float("inf"))


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
    train_ensemble(EnsembleRequest(defense, "digits", "mini-resnet(width=4)", 2), changes, out=out, device="cpu")
    torch.set_num_threads(threads)
    _without_curve(out / FILE_NAME)
    return out


def _without_curve(path: Path) -> None:
    """A few epochs will do here: the checkpoint says as little of its training as older ones, so nothing is flagged."""
    trained = load_checkpoint(path)
    assert trained.provenance is not None
    scores = {name: value for name, value in trained.provenance.scores.items() if not name.startswith("train_accuracy")}
    save_checkpoint(path, trained, replace(trained.provenance, scores=scores))


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
    """A cell of digits by its task and defense; whatever else matters to a test is named by it."""

    def make(task: Task, defense: str = "ours", **others: Any) -> Cell:
        samples = others.pop("samples", 50)
        conditions = {"seed": 0, "batch_size": samples, "device": "cpu"}
        facts = {
            "spec": defense,
            "members": 2,
            "network": "mini-resnet",
            "training": "fast recipe, 12 epochs, seed 0",
            "weights": f"weights of {defense}",
        }
        images = {"dataset": "digits", "checksum": "0" * 64}
        published = others.pop("published", None)
        for part in (conditions, facts, images):
            part |= {name: others.pop(name) for name in list(others) if name in part or name == "acceleration"}
        assert not others, others
        return Cell(
            EnsembleFacts(defense=defense, **facts),
            task,
            TestImages(samples=samples, **images),
            Conditions(**conditions),
            published,
        )

    return make


def records_of(cell: Cell, columns: dict[str, Any]) -> pd.DataFrame:
    """Records of a finished cell: every image right and cheap, but for the columns given."""
    usual: dict[str, Any] = {"label": 3, "clean_prediction": 3, "attacked": bool(cell.task.attacks), "correct": True}
    usual |= {"forwards": 1.0, "backwards": 1.0, "seconds": 0.001, "batch_size": cell.conditions.batch_size}
    return cell.task.records.frame(Span(0, cell.images.samples), {**usual, **columns})


@pytest.fixture
def make_records() -> Callable[[Cell, dict[str, Any]], pd.DataFrame]:
    return records_of


@pytest.fixture
def make_results() -> Callable[[Sequence[tuple[Cell, dict[str, Any]]]], Results]:
    """Results of finished cells, in memory; see `records_of`."""

    def make(finished: Sequence[tuple[Cell, dict[str, Any]]]) -> Results:
        records = {cell: records_of(cell, columns) for cell, columns in finished}
        return Results(tuple(records), records, manifest={"preset": "demo", "title": "By hand", "commands": []})

    return make


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[[Sequence[tuple[Cell, dict[str, Any]]]], Store]:
    """A run folder of finished cells; see `records_of`."""

    def make(finished: Sequence[tuple[Cell, dict[str, Any]]]) -> Store:
        store = Store(tmp_path / "run")
        store.open("demo")
        cells = [cell for cell, _ in finished]
        store.write_manifest(cells, {"preset": "demo", "title": "By hand", "commands": []})
        for cell, columns in finished:
            store.write(cell, records_of(cell, columns))
        return store

    return make
