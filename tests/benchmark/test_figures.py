"""Every figure comes as SVG, PNG and CSV, and comes back byte by byte from the cells alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmark import hardware
from benchmark.cells import Cell
from benchmark.cli import run
from benchmark.reports import write_report
from benchmark.reports.curves import curve_figures
from benchmark.reports.diversity import diversity_figures
from benchmark.reports.figures import WIDTH, Figure, keep, legend_columns, legend_width, text_width
from benchmark.reports.strip import IMAGES, strip_figures
from benchmark.reports.tables import read_rows
from benchmark.reports.transfer import transfer_figures, transfer_table
from benchmark.store import Store

ROOT = Path(__file__).parents[2]
MakeCell = Callable[..., Cell]
MakeStore = Callable[[Sequence[tuple[Cell, dict[str, Any]]]], Store]

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
        patch.setattr("benchmark.grid.FOLDER", folder)
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


# --- what figures say ---


def _curves(make_cell: MakeCell, make_store: MakeStore, right: dict[str, tuple[int, ...]]) -> list[Any]:
    finished = [
        (make_cell("whitebox", name, "pgd", settings={"eps": eps}), {"correct": np.arange(50) < count})
        for name, counts in right.items()
        for eps, count in zip((0.1, 0.2, 0.3), counts, strict=True)
    ]
    cells, rows, *_ = read_rows(make_store(finished))
    return curve_figures(cells, rows)


def test_a_curve_that_does_not_fall_is_named(make_cell: MakeCell, make_store: MakeStore) -> None:
    (figure,) = _curves(make_cell, make_store, {"good": (40, 10, 0), "odd": (40, 35, 30)})
    assert "has not fallen to nothing: odd keeps 60.0 %" in figure.words and "good keeps" not in figure.words
    assert figure.data["accuracy"].tolist() == [80, 20, 0, 80, 70, 60, 100, 100], "at last without an attack"
    (figure,) = _curves(make_cell, make_store, {"good": (40, 10, 0)})
    assert figure.words == "Every curve falls below 5 % by eps = 0.3, as it must."


def test_more_defenses_than_colours_can_be_drawn(make_cell: MakeCell, make_store: MakeStore, tmp_path: Path) -> None:
    (figure,) = _curves(make_cell, make_store, {f"defense {n}": (40, n, 0) for n in range(11)})
    keep(tmp_path, [figure])
    assert len(list(tmp_path.glob("curve-*"))) == 3 and figure.data["defense"].nunique() == 11


def _diverse(samples: int, right: int, members: int = 2, mapped: bool = True) -> dict[str, Any]:
    draws = np.random.default_rng(0)
    columns: dict[str, Any] = {"led": -draws.random(samples), "correct": np.arange(samples) < right}
    for k in range(members):
        shown = [*draws.dirichlet(np.ones(10), min(samples, 12))] + [None] * max(samples - 12, 0)
        columns[f"probabilities_net{k + 1}"] = shown
        if mapped:
            columns[f"tsne_net{k + 1}"] = [*draws.normal(size=(samples, 2))]
    return columns


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        ([{"right": 30}, {"right": 30}], ["diversity", "geometry", "features"]),
        ([{"right": 30, "members": 10}], ["diversity", "geometry", "features"]),
        ([{"right": 30}, {"right": 0}], ["diversity", "features"]),
        ([{"right": 30}, {"right": 5, "samples": 5}], ["diversity", "geometry", "features"]),
        ([{"right": 1, "samples": 1, "mapped": False}], ["diversity", "geometry"]),
    ],
    ids=["usual", "many members", "no image that all get right", "different sample counts", "a single image"],
)
def test_pictures_of_diversity_are_drawn_as_far_as_the_images_go(
    cells: list[dict[str, Any]], names: list[str], make_cell: MakeCell, make_store: MakeStore, tmp_path: Path
) -> None:
    finished = []
    for position, given in enumerate(cells):
        samples = given.get("samples", 30)
        cell = make_cell("diversity", f"d{position}", members=given.get("members", 2), samples=samples)
        finished.append((cell, _diverse(**{"samples": samples, **given})))
    figures = diversity_figures(make_store(finished))
    assert [figure.name for figure in figures] == [f"{name}-digits" for name in names]
    keep(tmp_path / "figures", figures)
    medians = [f"d{n} {np.median(columns['led']):.2f}" for n, (_, columns) in enumerate(finished)]
    assert figures[0].words.startswith(f"Median of the log ensemble diversity: {', '.join(medians)}. ")
    shares = figures[0].data.groupby("defense")["percent"].sum()
    assert shares.tolist() == pytest.approx([100] * len(cells), abs=1e-3)


def test_pictures_of_several_seeds_keep_apart(make_cell: MakeCell, make_store: MakeStore) -> None:
    figures = diversity_figures(
        make_store([(make_cell("diversity", samples=30, seed=seed), _diverse(30, 30)) for seed in (0, 1)])
    )
    assert len({figure.name for figure in figures}) == 6


TRANSFERRED = {
    "target": -1,
    "prediction_net1": np.where(np.arange(10) < 6, 3, 7),
    "prediction_net2": np.where(np.arange(10) < 2, 3, 7),
    "prediction_ensemble": 3,
    "clean_net1": np.where(np.arange(10) < 9, 3, 7),
    "clean_net2": 3,
    "clean_ensemble": 7,
}


def test_transfer_by_two_libraries_is_told_apart(make_cell: MakeCell, make_store: MakeStore) -> None:
    settings = {"eps": 0.1, "targeted": False, "source": "net2"}
    cells = [
        make_cell("transfer", attack="pgd", settings=settings, samples=10, library=library)
        for library in ("torchattacks", "art")
    ]
    store = make_store([(cell, TRANSFERRED) for cell in cells])
    assert set(transfer_table(store)["attack"]) == {"pgd@torchattacks", "pgd@art"}
    assert len({figure.name for figure in transfer_figures(store)}) == 2


def test_a_report_leaves_nothing_of_an_earlier_one_and_all_that_is_not_its_own(
    make_cell: MakeCell, make_store: MakeStore
) -> None:
    settings = {"eps": 0.1, "targeted": False, "source": "net2"}
    store = make_store([(make_cell("transfer", attack="pgd", settings=settings, samples=10), TRANSFERRED)])
    write_report(store)
    (store.folder / "figures" / "mine.svg").write_text("<svg/>")
    made = {path.name for path in (store.folder / "figures").iterdir()}
    assert (store.folder / "transfer.csv").is_file() and len(made) == 4
    store.write_manifest({**store.manifest(), "cells": []})
    write_report(store)
    assert not (store.folder / "transfer.csv").exists()
    assert {path.name for path in (store.folder / "figures").iterdir()} == {"mine.svg"}


def test_the_transfer_matrix_counts_hits_and_what_was_right_before(make_cell: MakeCell, make_store: MakeStore) -> None:
    cell = make_cell("transfer", attack="pgd", settings={"eps": 0.1, "targeted": False, "source": "net2"}, samples=10)
    store = make_store([(cell, TRANSFERRED)])
    table = transfer_table(store).set_index("target")
    assert table["value"].to_dict() == {"net1": 60, "net2": 20, "ensemble": 100}
    # both right before: images 0 to 8; of these the source is fooled on 2 to 8, and net1 too on 6 to 8
    assert table.loc["net1", "transfer_tried"] == 7 and table.loc["net1", "transfer_rate"] == pytest.approx(
        300 / 7, abs=1e-3
    )
    assert table.loc["ensemble", "transfer_tried"] == 0 and np.isnan(table.loc["ensemble", "transfer_rate"])
    (figure,) = transfer_figures(store)
    axis = figure.canvas.axes[0]
    assert [patch.get_xy() for patch in axis.patches] == [(1 - 0.46, -0.44)], "net2 against net2, with net1 missing"


# --- how figures are laid out ---


def _attacked(side: int, members: int = 3, samples: int = 6) -> dict[str, Any]:
    draws = np.random.default_rng(side)
    pictures = draws.random((2, samples, 1, side, side)).astype(np.float16)
    clean, adversarial = ([picture.tobytes() for picture in kind] for kind in pictures)
    columns: dict[str, Any] = {"image_clean": clean, "image_adversarial": adversarial}
    columns |= {"shape": [[1, side, side]] * samples, "members": [[7] * members] * samples}
    return {**columns, "adversarial_prediction": 7}


@pytest.mark.parametrize("attacks", [1, 4])
def test_a_strip_has_one_axes_however_many_attacks_it_shows(
    attacks: int, make_cell: MakeCell, make_store: MakeStore
) -> None:
    cells = [make_cell("whitebox", attack=name, samples=6) for name in ("fgsm", "bim", "pgd", "mim")[:attacks]]
    (figure,) = strip_figures(make_store([(cell, _attacked(8)) for cell in cells]), cells)
    (axis,) = figure.canvas.axes
    assert len(axis.images) == 1 and len(figure.data) == attacks * IMAGES
    assert len(axis.texts) == attacks * (2 * IMAGES + 1) + IMAGES + 1, "two above every pair, and the names of lines"


@pytest.mark.parametrize("side", [8, 28, 32, 300])
def test_a_strip_shows_every_pixel_as_large_as_the_next(side: int, make_cell: MakeCell, make_store: MakeStore) -> None:
    cell = make_cell("whitebox", attack="fgsm", samples=6)
    (figure,) = strip_figures(make_store([(cell, _attacked(side))]), [cell])
    mosaic = np.asarray(figure.canvas.axes[0].images[0].get_array())
    assert tuple(mosaic.shape[1::-1]) == tuple(200 * figure.canvas.get_size_inches()), "a pixel of the PNG is its own"
    lines = np.flatnonzero((mosaic[..., :3] != 255).any(axis=(1, 2)))
    first = lines[: np.flatnonzero(np.diff(lines, append=10**6) > 1)[0] + 1]
    assert 70 < len(first) <= 104 and (len(first) % side == 0 or side > 104)


LONG = "label-smoothing-0.6+adp-2-0.5-with-a-name-longer-than-any"


def _long_figures(make_cell: MakeCell, make_store: MakeStore) -> list[Figure]:
    """A figure of most kinds whose labels are longer than usual."""
    settings = {"eps": 0.1, "steps": 1000, "step_size": 0.00123, "restarts": 5}
    attacks = [make_cell("whitebox", LONG, name, settings=settings, samples=6) for name in ("pgd", "mim")]
    source = {"eps": 0.1, "targeted": False, "source": "net2"}
    transfers = [make_cell("transfer", f"{LONG}-{n}", "pgd", settings=source, samples=10) for n in range(3)]
    diverse = [make_cell("diversity", LONG, members=members, samples=30) for members in (2, 10)]
    figures = _curves(make_cell, make_store, {f"{LONG}-{n}": (40, n, 0) for n in range(20)})
    figures += strip_figures(make_store([(cell, _attacked(8, members=10)) for cell in attacks]), attacks)
    figures += transfer_figures(make_store([(cell, TRANSFERRED) for cell in transfers]))
    figures += diversity_figures(make_store([(cell, _diverse(30, 30, cell.members)) for cell in diverse]))
    return figures


def test_no_label_is_cut_off_however_long(make_cell: MakeCell, make_store: MakeStore) -> None:
    figures = _long_figures(make_cell, make_store)
    assert len(figures) == 6
    for figure in figures:
        drawn = figure.canvas.get_tightbbox().extents  # in inches
        assert (drawn[:2] > -1e-6).all() and (drawn[2:] < figure.canvas.get_size_inches() + 1e-6).all(), figure.name


def test_a_legend_has_as_many_columns_as_fit() -> None:
    assert legend_columns(["a", "b", "c"]) == 3
    assert legend_columns(["a"] * 9) == 4
    wide = "x" * 60
    assert WIDTH / 2 < legend_width([wide]) < WIDTH and legend_columns([wide, wide]) == 1
    assert text_width([]) == 0 and text_width(["a\nlonger", "b"]) == text_width(["longer"])


# --- the code behind a result ---


def test_the_commit_of_a_repository_around_an_installed_package_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    project = tmp_path / "project"
    installed = project / "env" / "site-packages" / "benchmark"
    installed.mkdir(parents=True)
    (installed / "hardware.py").touch()
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "theirs"]):
        subprocess.run([git, "-C", str(project), *words], check=True)
    monkeypatch.setattr(hardware, "__file__", str(installed / "hardware.py"))
    assert hardware.commit() == ""
    shutil.move(project / "env" / "site-packages" / "benchmark", project / "benchmark")
    monkeypatch.setattr(hardware, "__file__", str(project / "benchmark" / "hardware.py"))
    head = subprocess.run([git, "-C", str(project), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    found = hardware.commit()
    assert head.stdout.startswith(found.removesuffix("-dirty")) and found.endswith("-dirty") and len(found) == 12 + 6
    for words in (["add", "-A"], [*identity, "commit", "-q", "-m", "ours"]):
        subprocess.run([git, "-C", str(project), *words], check=True)
    (project / "table.csv").write_text("a result is no change of the code\n")
    assert re.fullmatch("[0-9a-f]{12}", hardware.commit())
