"""``adp-bench crosscheck`` puts every library's version of an attack beside the default's and says what differs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from torch import Tensor

from benchmark import datasets
from benchmark.attacks import ATTACKS, NamedAttack, foolbox_backend, library_version, parse_attack
from benchmark.cells.cell import Cell
from benchmark.cells.pictures import Pictures
from benchmark.cli import run
from benchmark.evaluations.whitebox import WhiteBox, WhiteBoxSection
from benchmark.findings.crosscheck import crosscheck_table, summary
from benchmark.findings.results import Results
from benchmark.harness.tiers import Tier
from benchmark.plan.libraries import PROGRAMS, crosscheck_preset, every_library, without_setting
from benchmark.plan.presets import Preset
from defenses.errors import BadInput

MakeCell = Callable[..., Cell]
MakeResults = Callable[..., Results]
ROOT = Path(__file__).parents[3]
MADE = ("crosscheck.csv", "crosscheck.md", "report.html", "table.csv")

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def quick(checkpoint: Path) -> list[str]:
    return ["crosscheck", "--defense", str(checkpoint), "--samples", "30", "--out", "a"]


def _table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "crosscheck.csv")


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- what is run ---


def _section(preset: Preset) -> WhiteBoxSection:
    (grid,) = preset.grids
    section = grid.section(WhiteBoxSection)
    assert section is not None and grid.sections == (section,)
    return section


@pytest.mark.parametrize("dataset", datasets.names())
def test_every_attack_of_several_libraries_is_run_in_each_of_them(dataset: str) -> None:
    planned: dict[str, list[str]] = {}
    images: dict[str, set[int]] = {}
    for row in _section(crosscheck_preset(dataset, "baseline", [])).rows:
        planned.setdefault(row.named.name, []).append(row.named.library)
        images.setdefault(row.named.label, set()).add(row.amount.samples)
    wanted = {name: list(ATTACKS.get(name).backends) for name in ATTACKS.targets()}
    assert planned == {name: libraries for name, libraries in wanted.items() if len(libraries) > 1}
    assert len(images) == len(planned), "one setting per attack"
    assert all(len(counts) == 1 for counts in images.values()), "every library gets the same images"
    assert without_setting(dataset) == []


def test_a_listed_setting_is_written_as_it_is_shown() -> None:
    for program in PROGRAMS.values():
        for text in program.listed:
            assert parse_attack(text).label == text


def test_an_attack_that_is_not_listed_appears_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS._targets, "fresh", ATTACKS.get("mim"))
    monkeypatch.setitem(ATTACKS._targets, "other", ATTACKS.get("jsma"))
    monkeypatch.delitem(PROGRAMS["tiny"].usual, "gamma")
    attacks = _section(crosscheck_preset("digits", "baseline", [])).attacks
    assert [named.text for named in attacks if named.name == "fresh"] == [
        f"fresh@{library}(eps=0.1)" for library in ("torchattacks", "art", "foolbox")
    ]
    assert without_setting("digits") == ["other"], "nobody knows its gamma"


def test_the_library_that_would_run_it_comes_first() -> None:
    libraries = [named.library for named in every_library(parse_attack("pgd(eps=12,norm=l1)"))]
    assert libraries[0] == "native" and sorted(libraries) == ["art", "foolbox", "native"]


def test_a_library_that_cannot_run_the_setting_is_left_out() -> None:
    assert [named.library for named in every_library(parse_attack("pgd(eps=0.1,restarts=2)"))] == ["native"]
    with pytest.raises(BadInput, match="exists only in native"):
        crosscheck_preset("digits", "baseline", ["pgd(eps=0.1,restarts=2)"])


# --- the command ---


def test_fgsm_bim_and_mim_of_art_are_the_defaults_and_everything_comes_back_from_the_store(
    quick: list[str], here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    attacks = ["--attack", "fgsm", "--attack", "bim", "--attack", "mim(eps=0.2)", "--attack", "cw(c=5,steps=10)"]
    assert run([*quick, *attacks]) == 0
    output = capfd.readouterr().out.splitlines()
    folder = here / "a"
    table = _table(folder)
    assert output == [summary(table), "a/crosscheck.md"]
    assert table["attack"].tolist() == ["fgsm"] * 3 + ["bim"] * 3 + ["mim"] * 3 + ["cw"] * 3
    assert (table["samples"] == 30).all() and (table["tier"] == "strict").all()
    rows = table.set_index(["attack", table["library"].str.partition(" ")[0]])
    for name in ("fgsm", "bim", "mim"):
        assert rows.loc[(name, "torchattacks"), "relation"] == "default"
        same = rows.loc[(name, "art")]
        assert same["verdict"] == "same images as torchattacks"
        assert (same["same_outcome"], same["same_class"], same["p"]) == (100, 100, 1)
        assert same["pixel_difference"] <= 2**-11
    assert rows.loc[("mim", "foolbox"), "pixel_difference"] > 0.01, "it sums signs"
    assert rows.loc[("mim", "foolbox"), "verdict"].endswith("– sums the signs of the gradients, not the gradients")
    accuracies = pd.read_csv(folder / "table.csv")["accuracy"]
    assert table["accuracy"].tolist() == accuracies.tolist(), "the same numbers as in the usual table"
    assert (table["cost"] > 0).all() and (table["cost"][table["relation"] == "default"] == 1).all()

    made = _bytes(folder)
    assert run([*quick, *attacks]) == 0
    assert f"{len(table)} of {len(table)} cells are done already" in capfd.readouterr().err
    assert _bytes(folder) == made, "a second run does nothing"
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "manifest.json" and path.parent.name != "cells":
            path.unlink()
    assert run(["report", "a"]) == 0
    assert _bytes(folder) == made
    text, page = ((folder / name).read_text() for name in ("crosscheck.md", "report.html"))
    for row in table.itertuples():
        assert f"| {row.verdict} |" in text and str(row.verdict) in page
    assert 'id="libraries"' in page and "data:image/svg+xml" in page


def test_a_library_that_fails_or_refuses_is_a_row_and_the_others_run(
    quick: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: Any) -> Tensor:
        raise ValueError("no good")

    monkeypatch.setattr(foolbox_backend, "fgsm", broken)
    attacks = ["--attack", "fgsm", "--attack", "cw(c=5,steps=10,abort_early=false)", "--attack", "bim"]
    assert run([*quick, *attacks]) == 1
    output = capfd.readouterr()
    assert output.err.splitlines()[-1].startswith("adp-bench: 3 of 9 cells failed")
    assert "failed: 3" in output.out
    table = _table(here / "a")
    verdicts = dict(zip(table["attack"] + "@" + table["library"].str.partition(" ")[0], table["verdict"], strict=True))
    assert verdicts["fgsm@foolbox"] == "failed: ValueError: no good"
    assert verdicts["cw@art"].startswith("refused: cw@art always stops early")
    assert verdicts["bim@foolbox"] == "same images as torchattacks"
    assert table["accuracy"].notna().sum() == 6
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert run([*quick, "--attack", "fgsm"]) == 0, "the next run tries again"
    table = _table(here / "a")
    assert table["verdict"][table["attack"] == "fgsm"].tolist() == ["the default", *["same images as torchattacks"] * 2]


def test_without_a_result_of_the_default_there_is_nothing_to_compare_with(
    quick: list[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmark.attacks.torchattacks_backend.fgsm", None)
    assert run([*quick, "--attack", "fgsm"]) == 1
    table = _table(here / "a")
    assert table["relation"].tolist() == ["failed", "alone", "alone"]
    assert table["verdict"][1] == "nothing to compare with: torchattacks has no result"


def test_a_killed_run_goes_on_and_ends_with_the_same_table(checkpoint: Path, here: Path) -> None:
    command = ["crosscheck", "--defense", str(checkpoint), "--samples", "20", "--attack", "fgsm", "--attack", "bim"]
    command += ["--attack", "ead(c=5,steps=40)"]
    code = "import sys; from benchmark.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command, "--out", "a"],
        cwd=here,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while len(list(here.glob("a/cells/*.parquet"))) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path.name: path.stat().st_mtime_ns for path in here.glob("a/cells/*.parquet")}
    assert 3 <= len(before) < 9, "killed on the way"
    assert run([*command, "--out", "a"]) == 0 and run([*command, "--out", "b"]) == 0
    after = {path.name: path.stat().st_mtime_ns for path in here.glob("a/cells/*.parquet")}
    assert before.items() <= after.items() and len(after) == 9
    timed = ["seconds", "cost"]
    pd.testing.assert_frame_equal(_table(here / "a").drop(columns=timed), _table(here / "b").drop(columns=timed))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "digts"], "unknown dataset 'digts'; did you mean digits?"),
        (["--attack", "pdg"], "did you mean pgd"),
        (["--attack", "pgd(eps=0)"], "eps is 0"),
        (["--attack", "pgd(eps=0.1"], "cannot read the attack"),
        (["--attack", "pgd@art(eps=0.1)"], "names a library, but every library is run; write pgd(eps=0.1)"),
        (["--attack", "evasive"], "attack 'evasive' exists only in native"),
        (["--samples", "0"], "Invalid value for '--samples'"),
        (["--samples", "many"], "Invalid value for '--samples'"),
        (["--samples", "99999"], "samples is 99999; digits has"),
        (["--defense", "basline"], "did you mean baseline"),
        (["--defense", "nowhere.safetensors"], "no checkpoint at nowhere.safetensors"),
        (["--seed", "-1"], "seed is -1"),
        (["--device", "gpu"], "unknown device 'gpu'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_exit_code_2_and_nothing_left_behind(
    arguments: list[str], message: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert run(["crosscheck", *arguments]) == 2
    output = capfd.readouterr()
    assert output.out == "" and message in output.err
    assert re.fullmatch(r"adp-bench: [^\n]+\n", output.err), "exactly one line"
    assert list(here.iterdir()) == []


def test_a_folder_of_another_run_is_refused(checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    demo = ["run", "demo", "--defense", str(checkpoint), "--attack", "fgsm", "--tier", "strict", "--samples", "10"]
    assert run([*demo, "--out", "a"]) == 0
    before = _bytes(here)
    assert run(["crosscheck", "--defense", str(checkpoint), "--attack", "fgsm", "--out", "a"]) == 2
    assert "a holds a run of preset 'demo', not 'crosscheck'" in capfd.readouterr().err
    assert _bytes(here) == before
    assert not (here / "a" / "crosscheck.md").exists(), "one library is no cross-check"


# --- the numbers and the words ---


def _task(text: str, tier: Tier = "strict") -> WhiteBox:
    return WhiteBox(parse_attack(text), tier)


def _records(right: int, size: float = 1.0, **others: Any) -> dict[str, Any]:
    """The first so many of 50 images stay right; the others are predicted as 5."""
    correct = np.arange(50) < right
    norms = dict.fromkeys(("l2", "l1"), size) | {"linf": 0.1}
    return {"correct": correct, "adversarial_prediction": np.where(correct, 3, 5), **norms, **others}


@pytest.fixture
def compared(make_cell: MakeCell, make_results: MakeResults) -> Callable[..., pd.Series[Any]]:
    """The row of the second library, by what both found."""

    def make(
        first: dict[str, Any],
        second: dict[str, Any],
        specs: tuple[str, str] = ("pgd(eps=0.1)", "pgd@art(eps=0.1)"),
        kept: tuple[Pictures, Pictures] | None = None,
    ) -> pd.Series[Any]:
        cells = [make_cell(_task(text)) for text in specs]
        results = make_results(list(zip(cells, (first, second), strict=True)))
        if kept:
            results = replace(results, pictures=dict(zip(cells, kept, strict=True)).get)
        return crosscheck_table(results).iloc[1]

    return make


def test_the_default_is_the_library_that_runs_it_unasked_wherever_it_stands(
    make_cell: MakeCell, make_results: MakeResults
) -> None:
    cells = [make_cell(_task(f"pgd@{library}(eps=0.1)")) for library in ("art", "torchattacks")]
    table = crosscheck_table(make_results([(cell, _records(20)) for cell in cells]))
    assert table["relation"].tolist() == ["default", "same outcomes"]
    assert table["library"].tolist() == [f"{name} {library_version(name)}" for name in ("torchattacks", "art")]


def test_a_significant_difference_is_told_with_its_direction(compared: Callable[..., pd.Series[Any]]) -> None:
    row = compared(_records(10), _records(30))
    assert row["verdict"] == "weaker than torchattacks, by 40.0 points"
    assert row["p"] == pytest.approx(2 * 0.5**20) and row["p_holm"] == row["p"]
    assert (row["same_outcome"], row["difference"]) == (60, 40)


def test_a_few_images_are_no_significant_difference(compared: Callable[..., pd.Series[Any]]) -> None:
    row = compared(_records(13), _records(10))
    assert row["verdict"] == "no significant difference from torchattacks (−6.0 points): 3 of 50 images end differently"
    assert row["p"] == pytest.approx(stats.binomtest(0, 3).pvalue)


def test_the_same_outcomes_are_not_called_the_same_images(compared: Callable[..., pd.Series[Any]]) -> None:
    row = compared(_records(10), _records(10))
    assert row["verdict"] == "same outcomes as torchattacks", "no image is kept that could prove more"
    assert pd.isna(row["pixel_difference"])


@pytest.mark.parametrize(
    ("pixels", "linf", "size", "relation"),
    [
        (0.5, 0.1, 1.0, "same images"),
        (0.5003, 0.1, 1.0, "same images"),
        (0.6, 0.1, 1.0, "same outcomes"),
        (0.5, 0.1, 1.2, "same outcomes"),
        (0.5, 0.0, 1.0, "same outcomes"),
    ],
    ids=["equal", "rounding", "a pixel differs", "another image has another size", "nobody moved the kept ones"],
)
def test_the_same_images_need_the_same_pixels_and_sizes(
    pixels: float, linf: float, size: float, relation: str, compared: Callable[..., pd.Series[Any]]
) -> None:
    def kept(value: float) -> Pictures:
        return Pictures(np.arange(5), np.full((5, 1, 8, 8), value, dtype=np.float16), None)

    moved = {"linf": np.where(np.arange(50) < 5, linf, 0.1)}
    other = np.where(np.arange(50) == 49, size, 1.0)
    row = compared(_records(10, **moved), _records(10, other, **moved), kept=(kept(0.5), kept(pixels)))
    assert row["relation"] == relation


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"unmoved": True}, "moved nothing; same outcomes"),
        ({"out_of_box": np.arange(50) < 34}, "left the box on 34 of 50 images; same outcomes"),
        ({"out_of_ball": np.arange(50) < 2}, "left the ball on 2 of 50 images; same outcomes"),
        ({"not_finite": np.arange(50) < 3}, "3 images not finite; same outcomes"),
        ({"zero_gradient": np.arange(50) < 9}, "no gradient on 9 of 50 images; same outcomes"),
        ({"forwards": 3.0, "backwards": 3.0}, "same outcomes as torchattacks; 3 times the passes"),
        ({"unmoved": np.arange(50) < 40, "zero_gradient": False}, "same outcomes"),
    ],
    ids=["nothing moved", "box", "ball", "not finite", "no gradient", "passes", "most moved not"],
)
def test_a_verdict_tells_what_went_wrong(
    columns: dict[str, Any], words: str, compared: Callable[..., pd.Series[Any]]
) -> None:
    assert compared(_records(10), _records(10, **columns))["verdict"].startswith(words)


def test_larger_perturbations_are_told_of_attacks_without_a_bound_only(
    compared: Callable[..., pd.Series[Any]],
) -> None:
    bounded = compared(_records(10), _records(10, 1.5))
    assert bounded["l2_ratio"] == 1.5 and bounded["verdict"] == "same outcomes as torchattacks"
    free = compared(_records(10), _records(10, 1.5), ("cw(c=1)", "cw@art(c=1)"))
    assert "perturbations 50 % larger" in free["verdict"]


def test_only_one_setting_of_one_ensemble_is_compared(make_cell: MakeCell, make_results: MakeResults) -> None:
    art = _task("pgd@art(eps=0.1)")
    cells = [
        make_cell(_task("pgd(eps=0.1)")),
        make_cell(art, "theirs"),
        make_cell(_task("pgd@art(eps=0.2)")),
        make_cell(_task("pgd@art(eps=0.1)", "paper")),
        make_cell(art, seed=1),
    ]
    assert crosscheck_table(make_results([(cell, _records(10)) for cell in cells])).empty
    together = make_results([(cell, _records(10)) for cell in (*cells, make_cell(art))])
    assert len(crosscheck_table(together)) == 2


def test_an_attack_in_another_norm_is_not_another_version_of_it(
    make_cell: MakeCell, make_results: MakeResults, l2_attack: Callable[..., NamedAttack]
) -> None:
    tasks = [WhiteBox(l2_attack(0.5, name="pgd"), "strict"), _task("pgd(eps=0.5)")]
    assert crosscheck_table(make_results([(make_cell(task), _records(10)) for task in tasks])).empty
