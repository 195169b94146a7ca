"""Orchestration: what a grid of cells costs beside the attacks in it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmark.cells.store import Store
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.training import train_ensemble
from benchmark.plan.grid import Wish, narrow
from benchmark.plan.presets import load_preset
from benchmark.plan.run_request import Request
from benchmark.reports import write_report
from benchmark.run.display import RunDisplay
from benchmark.run.runner import run


def test_a_grid_of_tiny_cells(benchmark: Any, note: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {"epochs": 1, "train_images": 200}
    asked = EnsembleRequest("baseline", "digits", "mini-resnet(width=4)", 2)
    train_ensemble(asked, changes, out=tmp_path / "small")
    attacks = [f"{name}(eps={eps})" for name in ("fgsm", "bim", "pgd", "mim") for eps in (0.05, 0.1, 0.15, 0.2)]
    wish = Wish(tiers=("strict",), defenses=(str(tmp_path / "small"),), attacks=tuple(attacks))
    preset = narrow(load_preset("demo"), wish)
    folders, report_seconds = iter("ab"), []

    def timed_report(store: Store, *others: Any) -> Any:
        began = time.perf_counter()
        diagnosis = write_report(store, *others)
        report_seconds.append(time.perf_counter() - began)
        return diagnosis

    monkeypatch.setattr("benchmark.run.runner.write_report", timed_report)

    def grid() -> Store:
        request = Request(preset, 50, (0,), torch.device("cpu"), tmp_path / f"run{next(folders)}", "benchmark")
        return run(request, RunDisplay())

    grid()  # imports, fonts
    store = benchmark.pedantic(grid, rounds=1)
    cells, seconds, reports = store.asked(), benchmark.stats.stats.median, report_seconds[-1]
    attacks_alone = sum(store.read(cell)["seconds"].sum() for cell in cells)
    beside = seconds - reports - attacks_alone
    note("tiny cells", "time beside attacks and report, of all", 100 * beside / seconds, "%")
    note("tiny cells", "time beside attacks and report", 1000 * beside / len(cells), "ms per cell")
    note("tiny cells", "tables, figures and page", 1000 * reports, "ms per run")
