"""Committed results are what their committed cells say, byte for byte, and name the committed ensembles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmark.cells.store import Store
from benchmark.cli import run
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.folders import ENSEMBLES, default_folder
from defenses.catalogue import parse_defense
from defenses.checkpoints import read_provenance

ROOT = Path(__file__).parents[2] / "results"
README = "".join(
    path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT.parent / "README.md", ROOT.parent / "docs" / "study-adp.md")
)
FOLDERS = sorted(path.parent for path in ROOT.glob("*/manifest.json"))


DVERGE = {
    "98d982b562317c96806181d210dfb33ca50cee192c49deffa2df40e3ccc69afe",
    "a4ac94622ecc4862a5756ac43faa3418f8ff537d3f1fa0c180e03ca4fae10794",
}
"""Checksums of the two ensembles that DVERGE's authors published. Their weights do not come with the project."""
KEPT = ("table.csv", "table.md")
"""What is committed beside manifest and cells, pictures of a README aside."""


def test_there_are_committed_results() -> None:
    assert {"cifar10-whitebox", "cifar10-strong"} <= {folder.name for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_report_makes_every_file_again_from_the_cells(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / folder.name
    shutil.copytree(folder / "cells", copy / "cells")
    shutil.copy(folder / "manifest.json", copy)
    assert run(["report", str(copy)]) == 0
    names = [*KEPT, *(str(path.relative_to(folder)) for path in folder.glob("figures/*.png") if path.name in README)]
    assert [name for name in names if (copy / name).read_bytes() != (folder / name).read_bytes()] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_cell_is_missing_and_none_holds_a_picture(folder: Path) -> None:
    store = Store(folder)
    assert [cell.title for cell in store.asked() if not store.has(cell)] == []
    assert [cell.title for cell in store.asked() if store.pictures(cell)] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_number_is_of_an_ensemble_that_comes_with_it(folder: Path) -> None:
    weights = {read_provenance(path).weights_sha256 for path in ROOT.glob("checkpoints/*/*/ensemble.safetensors")}
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["cells"] and {cell["weights"] for cell in manifest["cells"]} <= (
        DVERGE if folder.name == "cifar10-dverge" else weights
    )
    assert not any("/root" in command or "/home" in command for command in manifest["commands"])


def test_every_line_of_the_queue_is_a_training_that_is_not_there_yet() -> None:
    """And adversarial training starts from an ensemble that is committed, or stands above it in the queue."""
    lines = [line.split() for line in (ROOT / "references.txt").read_text(encoding="utf-8").splitlines()]
    known = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("checkpoints/*/*/ensemble.safetensors")}
    for defense, *words in (line for line in lines if line and not line[0].startswith("#")):
        options = dict(zip(words[::2], words[1::2], strict=True))
        members, seed = int(options.get("--members", 3)), int(options.get("--seed", 0))
        request = EnsembleRequest(defense, options["--dataset"], "", members, "reference", seed)
        start = options.get("--start-from")
        assert start is None or str(Path(start).relative_to("results")) in known
        changes = {"epochs": int(options["--epochs"])} if "--epochs" in options else {}
        folder = default_folder(parse_defense(defense), request, request.recipe_with(**changes))
        place = str("checkpoints" / folder.relative_to(ENSEMBLES))
        assert place not in known
        known.add(place)
