"""A report: every figure as SVG, PNG and CSV, all of it from the cells alone, byte by byte, each read once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from benchmark.attacks import parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.cli import run
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.detection import SCORES, Detection
from benchmark.evaluations.diversity import Diversity
from benchmark.evaluations.task import Task
from benchmark.evaluations.transfer import Transfer
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import Stage, WorstCase
from benchmark.machine import hardware
from benchmark.reports import write_report
from benchmark.run.comparing import keep_record

ROOT = Path(__file__).parents[3]
MakeCell = Callable[..., Cell]
MakeStore = Callable[..., Store]

PRESET = """
title = "Every figure, small"

[[grid]]
dataset = "digits"
defenses = ["baseline"]
tiers = ["strict"]
batch_size = 12
attacks = [
    { spec = "none" },
    { spec = "fgsm(eps=0.1)" },
    { spec = "pgd(eps=0.05,steps=3)" },
    { spec = "pgd(eps=0.2,steps=3)" },
    { spec = "pgd(eps=0.5,steps=3)" },
]

[grid.transfer]
attacks = ["mim(eps=0.1,steps=3)"]

[grid.detection]
attacks = ["fgsm(eps=0.3)", "evasive(eps=0.3,steps=3)"]

[grid.diversity]
"""


@pytest.fixture(scope="module")
def finished(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every evaluation that has a figure."""
    folder = tmp_path_factory.mktemp("figures")
    (folder / "small.toml").write_text(PRESET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmark.plan.presets.FOLDER", folder)
        arguments = ["run", "small", "--defense", str(checkpoint), "--samples", "24", "--out", str(folder / "run")]
        assert run(arguments) == 0
    return folder / "run"


def _seen(folder: Path) -> dict[str, bytes]:
    """Everything made for a reader: not the manifest, not the cells."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.parent != folder / "cells")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.name != "manifest.json"}


def test_every_figure_has_svg_png_and_csv(finished: Path) -> None:
    names: dict[str, set[str]] = {}
    for path in (finished / "figures").iterdir():
        names.setdefault(path.name[: -len(path.suffix)], set()).add(path.suffix)
    assert {name: sorted(kinds) for name, kinds in names.items()} == {
        name: [".csv", ".png", ".svg"]
        for name in (
            "attacks-digits-small",
            "curve-digits-pgd-torchattacks-steps=3-strict",
            "detection-digits-small",
            "diversity-digits",
            "features-digits",
            "geometry-digits",
            "tiers-digits",
            "transfer-digits-mim-eps=0.1-steps=3-targeted",
            "transfer-digits-mim-eps=0.1-steps=3-untargeted",
        )
    }
    for path in (finished / "figures").iterdir():
        content = path.read_bytes()
        if path.suffix == ".csv":
            assert len(pd.read_csv(path)) > 0, path.name
        elif path.suffix == ".png":
            assert content.startswith(b"\x89PNG") and b"Software" not in content
        else:
            assert b"<svg" in content and b"<dc:date>" not in content and b"<text" not in content


def test_what_is_deleted_comes_back_byte_by_byte(finished: Path) -> None:
    before = _seen(finished)
    assert {"table.csv", "table.md", "table.tex", "transfer.csv", "detection.csv", "report.html"} < before.keys()
    for name in before:
        (finished / name).unlink()
    assert run(["report", str(finished)]) == 0
    _assert_same(_seen(finished), before)


def test_the_bytes_depend_on_no_hash_seed_clock_zone_or_taste(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "run"
    shutil.copytree(finished / "cells", copy / "cells")
    shutil.copy(finished / "manifest.json", copy)
    (tmp_path / "matplotlibrc").write_text("font.size: 20\naxes.grid: True\nsavefig.bbox: tight\n")
    changes = {"PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "1"}
    environment = {**os.environ, **changes, "PYTHONPATH": str(ROOT), "MPLCONFIGDIR": str(tmp_path)}
    command = [sys.executable, "-m", "benchmark.cli", "report", str(copy)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    _assert_same(_seen(copy), _seen(finished))


def _assert_same(found: dict[str, bytes], wanted: dict[str, bytes]) -> None:
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if found[name] != wanted[name]] == []


# --- as the reader wishes ---


def test_figures_are_pdf_too_on_request_and_stay_so(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    assert run(["report", str(copy), "--figures", "pdf"]) == 0
    names = {path.stem for path in copy.glob("figures/*.pdf")}
    assert names == {path.stem for path in copy.glob("figures/*.png")} and len(names) > 5
    first = _seen(copy)
    assert all(first[name].startswith(b"%PDF") for name in first if name.endswith(".pdf"))
    assert not any(b"CreationDate" in first[name] for name in first if name.endswith(".pdf"))
    assert run(["report", str(copy)]) == 0
    _assert_same(_seen(copy), first)
    assert run(["report", str(copy), "--figures", "gif"]) == 2


def test_a_report_shows_chosen_defenses_in_the_order_that_was_asked_for(
    make_cell: MakeCell, make_store: MakeStore
) -> None:
    pgd = WhiteBox(parse_attack("pgd(eps=0.1)"), "strict")
    names = ("baseline", "adp-2-0.5", "gal")
    store = make_store([(make_cell(pgd, name), {}) for name in names])
    folder = str(store.folder)
    assert run(["report", folder, "--defense", "gal", "--defense", "baseline"]) == 0
    head = next(line for line in (store.folder / "table.md").read_text().splitlines() if line.startswith("| attack"))
    assert head == "| attack | parameters | GAL | baseline |"
    assert "ADP" not in (store.folder / "table.tex").read_text()
    assert run(["report", folder, "--defense", "bseline"]) == 2
    assert run(["report", folder]) == 0 and "ADP" in (store.folder / "table.tex").read_text()


# --- from cells made by hand ---

TRANSFERRED: dict[str, Any] = {f"prediction_{name}": 3 for name in ("net1", "net2", "ensemble")}
TRANSFERRED |= {f"clean_{name}": 3 for name in ("net1", "net2", "ensemble")}


def test_a_report_leaves_nothing_of_an_earlier_one_and_all_that_is_not_its_own(
    make_cell: MakeCell, make_store: MakeStore
) -> None:
    store = make_store([(make_cell(Transfer(parse_attack("pgd(eps=0.1)"), 1), samples=10), TRANSFERRED)])
    write_report(store)
    (store.folder / "figures" / "mine.svg").write_text("<svg/>")
    made = {path.name for path in (store.folder / "figures").iterdir()}
    assert (store.folder / "transfer.csv").is_file() and len(made) == 4
    store.write_manifest([], store.manifest())
    write_report(store)
    assert not (store.folder / "transfer.csv").exists()
    assert {path.name for path in (store.folder / "figures").iterdir()} == {"mine.svg"}


def test_a_report_reads_the_records_of_every_cell_once(
    make_cell: MakeCell, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every evaluation with a table or a figure, of two libraries, and of two defenses that are compared."""
    pgd = parse_attack("pgd(eps=0.1)")
    stage = {"stage": 0, "forwards": 1.0, "backwards": 1.0, "seconds": 0.1, "source_fooled": None}
    scores = dict.fromkeys(SCORES, np.arange(20.0))
    columns: dict[Task, dict[str, Any]] = {
        Clean(): {},
        Clean(0): {},
        WhiteBox(pgd, "paper"): {},
        WhiteBox(pgd, "strict"): {},
        WhiteBox(parse_attack("pgd@art(eps=0.1)"), "strict"): {},
        WorstCase(Bound("linf", 0.1), "full", (Stage(pgd),)): {"stages": [[stage]] * 20},
        Transfer(pgd, 0): TRANSFERRED,
        Transfer(pgd, 1): TRANSFERRED,
        Detection(None, 10): scores,
        Detection(pgd): dict.fromkeys(SCORES, np.arange(10.0)) | {"adversarial_prediction": 7},
        Diversity(): {"led": -np.ones(20), **{f"probabilities_net{k}": [np.full(10, 0.1)] * 20 for k in (1, 2)}},
    }
    finished = [
        (make_cell(task, samples=10 if task == Detection(pgd) else 20), given) for task, given in columns.items()
    ]
    finished.append((make_cell(WhiteBox(pgd, "strict"), "theirs", samples=20), {}))
    store = make_store(finished)
    keep_record(store, "ours", ["theirs"], [])
    read, table_of = Counter[str](), pq.read_table

    def counted(source: Any, *arguments: Any, **others: Any) -> Any:
        read[Path(source.name).name] += 1
        return table_of(source, *arguments, **others)

    monkeypatch.setattr(pq, "read_table", counted)
    write_report(store)
    assert read == {store.path(cell).name: 1 for cell, _ in finished}
    made = {path.name for path in store.folder.iterdir()}
    assert {"comparison.md", "crosscheck.md", "gap.csv", "strong.csv", "transfer.csv", "detection.csv"} <= made


def test_a_report_is_written_without_torch(make_cell: MakeCell, make_store: MakeStore) -> None:
    cells = [make_cell(WhiteBox(parse_attack(f"pgd(eps={eps})"), "strict")) for eps in (0.1, 0.2, 0.3)]
    store = make_store([(cell, {}) for cell in cells])
    code = (
        "import sys; from pathlib import Path; from benchmark.cells.store import Store; "
        "from benchmark.reports import write_report; write_report(Store(Path(sys.argv[1]))); "
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(store.folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    assert (store.folder / "report.html").is_file() and len(list((store.folder / "figures").iterdir())) == 6


# --- the code behind a result ---


def test_the_commit_of_a_repository_around_an_installed_package_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    project = tmp_path / "project"
    installed = project / "env" / "site-packages" / "benchmark"
    (installed / "machine").mkdir(parents=True)
    (installed / "machine" / "hardware.py").touch()
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "theirs"]):
        subprocess.run([git, "-C", str(project), *words], check=True)
    monkeypatch.setattr(hardware, "__file__", str(installed / "machine" / "hardware.py"))
    assert hardware.commit() == ""
    shutil.move(installed, project / "benchmark")
    monkeypatch.setattr(hardware, "__file__", str(project / "benchmark" / "machine" / "hardware.py"))
    head = subprocess.run([git, "-C", str(project), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    found = hardware.commit()
    assert head.stdout.startswith(found.removesuffix("-dirty")) and found.endswith("-dirty") and len(found) == 12 + 6
    for words in (["add", "-A"], [*identity, "commit", "-q", "-m", "ours"]):
        subprocess.run([git, "-C", str(project), *words], check=True)
    (project / "table.csv").write_text("a result is no change of the code\n")
    assert re.fullmatch("[0-9a-f]{12}", hardware.commit())
