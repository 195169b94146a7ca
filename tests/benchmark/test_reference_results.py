"""Committed results are what their committed cells say, byte for byte, and name the committed ensembles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmark.cli import run
from defenses.checkpoints import read_provenance

ROOT = Path(__file__).parents[2] / "results"
FOLDERS = sorted(path.parent for path in ROOT.glob("*/manifest.json"))


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".parquet"
    }


def test_there_are_committed_results() -> None:
    assert {"cifar10-whitebox", "cifar10-strong"} <= {folder.name for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_report_makes_every_file_again_from_the_cells(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / folder.name
    shutil.copytree(folder / "cells", copy / "cells")
    shutil.copy(folder / "manifest.json", copy)
    assert run(["report", str(copy)]) == 0
    wanted, found = _files(folder), _files(copy)
    assert sorted(found) == sorted(wanted)
    assert [name for name in wanted if found[name] != wanted[name]] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_number_is_of_an_ensemble_that_comes_with_it(folder: Path) -> None:
    weights = {read_provenance(path).weights_sha256 for path in ROOT.glob("checkpoints/*/*/ensemble.safetensors")}
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["cells"] and {cell["weights"] for cell in manifest["cells"]} <= weights
    assert not any("/root" in command or "/home" in command for command in manifest["commands"])
