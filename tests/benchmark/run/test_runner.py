"""A run does what is missing and nothing twice, however it was stopped, and ends with the same tables."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from benchmark.attacks import parse_attack, torchattacks_backend
from benchmark.cells.store import Store
from benchmark.cli import run
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.training import train_ensemble
from benchmark.evaluations.blackbox import BlackBoxSection
from benchmark.evaluations.task import Amount
from benchmark.evaluations.whitebox import LOOKED_AT, SHOWN, WhiteBox
from benchmark.plan.presets import load_preset
from benchmark.plan.run_request import Request
from benchmark.run.display import RunDisplay
from benchmark.run.runner import run as run_request

ROOT = Path(__file__).parents[3]
TABLES = ("table.csv", "table.md", "table.tex")


pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def demo(checkpoint: Path) -> list[str]:
    """A small part of the preset demo on the small ensemble."""
    return ["run", "demo", "--defense", str(checkpoint), "--samples", "30", "--batch-size", "10"]


BOTH = ["--tier", "paper", "--tier", "strict"]
"""The strong tier has tests of its own."""
FAST = ["--attack", "none", "--attack", "fgsm", "--attack", "pgd(eps=0.1)", *BOTH]


def _cells(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.glob("cells/*.parquet")}


def _table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "table.csv", keep_default_na=False)


def _untimed(folder: Path) -> str:
    return _table(folder).drop(columns="seconds").to_csv()


# --- the same again ---


def test_the_same_seed_gives_the_same_bytes_but_for_the_seconds(demo: list[str], here: Path) -> None:
    for name in ("one", "two"):
        assert run([*demo, *FAST, "--attack", "cw(c=5,steps=10)", "--out", name]) == 0
    assert _untimed(here / "one") == _untimed(here / "two")
    for name in ("table.md", "table.tex"):
        assert (here / "one" / name).read_bytes() == (here / "two" / name).read_bytes()
    table = _table(here / "one")
    assert len(table) == 3 + 2 * 3, "two members and the ensemble; three attacks in two tiers"
    assert (table["samples"] == 30).all()
    assert run([*demo, *FAST, "--seed", "7", "--out", "three"]) == 0
    assert _untimed(here / "three") != _untimed(here / "one")


def test_a_second_run_does_nothing(demo: list[str], here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*demo, *FAST]) == 0
    folder = here / "results" / "runs" / "demo"
    cells, tables = _cells(folder), [(folder / name).read_bytes() for name in TABLES]
    capfd.readouterr()
    assert run([*demo, *FAST]) == 0
    assert "7 of 7 cells are done already" in capfd.readouterr().err
    assert _cells(folder) == cells and [(folder / name).read_bytes() for name in TABLES] == tables


def test_the_tables_come_back_from_the_cells_alone(demo: list[str], here: Path) -> None:
    assert run([*demo, *FAST, "--out", "a"]) == 0
    before = {name: (here / "a" / name).read_bytes() for name in TABLES}
    for name in TABLES:
        (here / "a" / name).unlink()
    assert run(["report", "a"]) == 0
    assert {name: (here / "a" / name).read_bytes() for name in TABLES} == before


# --- extending ---


@pytest.mark.parametrize("what", ["samples", "attack", "tier", "seed", "defense"])
def test_extending_a_run_redoes_nothing(what: str, demo: list[str], checkpoint: Path, here: Path) -> None:
    base = [*demo, "--attack", "pgd(eps=0.1)", "--tier", "strict", "--out", "a"]
    assert run(base) == 0
    before = _cells(here / "a")
    more = {
        "samples": ["--samples", "50"],
        "attack": ["--attack", "bim(eps=0.1)"],
        "tier": ["--tier", "paper"],
        "seed": ["--seeds", "0,1"],
        "defense": ["--defense", str(_copy(checkpoint, here / "other"))],
    }[what]
    assert run([*base, *more]) == 0
    after = _cells(here / "a")
    assert {name: after[name] for name in before} == before, "not even written again"
    assert len(after) == len(before) + 1
    table = _table(here / "a")
    assert len(table) == (1 if what == "samples" else 2), "of two sample counts the later is shown"
    if what == "samples":
        one, two = (pd.read_parquet(here / "a" / "cells" / name) for name in sorted(after))
        pd.testing.assert_frame_equal(two.iloc[:30], one)
        assert run([*base, *more[:2], "--out", "b"]) == 0
        assert _untimed(here / "b") == _untimed(here / "a"), "as if all had been asked for at once"


def test_rows_stand_in_the_order_of_the_preset_whatever_was_asked_first(demo: list[str], here: Path) -> None:
    asked = [("pgd(eps=0.2)", "strict"), ("pgd(eps=0.1)", "strict"), ("fgsm", "paper"), ("fgsm", "strict")]
    asked += [("pgd(eps=0.2)", "strong"), ("pgd(eps=0.1)", "strong"), ("none", "strict")]
    for attack, tier in asked:
        assert run([*demo, "--attack", attack, "--tier", tier, "--out", "a"]) == 0
    table = _table(here / "a")
    clean = [("none", f"classifier={name}", "clean") for name in ("net1", "net2", "ensemble")]
    fgsm = [("fgsm", "eps=0.1", "paper"), ("fgsm", "eps=0.1", "strict")]
    worst = [("worst-case", f"eps={eps},suite=quick", "strong") for eps in (0.1, 0.2)]
    wanted = [*clean, *fgsm, ("pgd", "eps=0.1", "strict"), ("pgd", "eps=0.2", "strict"), *worst]
    assert list(zip(table["attack"], table["parameters"], table["tier"], strict=True)) == wanted


def _copy(checkpoint: Path, folder: Path) -> Path:
    """Another ensemble: the same members in another order."""
    from dataclasses import replace

    from defenses.checkpoints import load_checkpoint, save_checkpoint

    ensemble = load_checkpoint(checkpoint)
    with torch.no_grad():
        ensemble.members[0].fc.bias += 0.5
    folder.mkdir()
    assert ensemble.provenance is not None
    save_checkpoint(folder / "ensemble.safetensors", ensemble, replace(ensemble.provenance, weights_sha256=""))
    return folder


def test_new_weights_under_an_old_name_replace_the_old_numbers(demo: list[str], checkpoint: Path, here: Path) -> None:
    path = _copy(checkpoint, here / "mine") / "ensemble.safetensors"
    command = ["run", "demo", "--defense", "mine", *demo[4:], "--attack", "fgsm", *BOTH, "--out", "a"]
    assert run(command) == 0
    path.write_bytes((checkpoint / "ensemble.safetensors").read_bytes())
    assert run(command) == 0
    assert len(_table(here / "a")) == 2, "one row per tier: old and new are not averaged"
    assert len(_cells(here / "a")) == 4


def test_two_checkpoints_of_one_file_name_are_two_columns(demo: list[str], checkpoint: Path, here: Path) -> None:
    (here / "x").mkdir()
    other = _copy(checkpoint, here / "x" / checkpoint.name)
    attack = ["--attack", "fgsm", "--tier", "strict", "--out", "a"]
    assert run([*demo, "--defense", f"{other}/ensemble.safetensors", *attack]) == 0
    assert _table(here / "a")["defense"].tolist() == [checkpoint.name, f"{other}/ensemble.safetensors"]
    one_by_one = [*demo[:2], *demo[4:], *attack, "--out", "b"]
    for path in (checkpoint, other / "ensemble.safetensors", checkpoint):
        assert run([*one_by_one, "--defense", str(path)]) == 0
    assert sorted(_table(here / "b")["defense"]) == sorted(_table(here / "a")["defense"])


def test_the_same_attack_of_two_libraries_is_two_rows(demo: list[str], here: Path) -> None:
    attacks = ["--attack", "bim(eps=0.1)", "--attack", "bim@art(eps=0.1)", "--tier", "strict"]
    assert run([*demo, *attacks, "--out", "a"]) == 0
    assert len(_table(here / "a")) == 2
    text = (here / "a" / "table.md").read_text()
    assert "±" not in text, "libraries are not seeds"
    assert len(re.findall(r"^\| BIM \((?:torchattacks|art)\)", text, re.MULTILINE)) == 2


def test_one_defense_under_two_names_runs_once(here: Path, checkpoint: Path) -> None:
    command = ["run", "demo", "--samples", "20", "--attack", "fgsm", "--tier", "strict", "--out", "a"]
    both = ["--defense", str(checkpoint), "--defense", f"{checkpoint}/"]
    assert run([*command, *both]) == 0
    assert "±" not in (here / "a" / "table.md").read_text()


def test_a_run_keeps_a_few_pictures_beside_its_cells_and_the_clean_ones_once(demo: list[str], here: Path) -> None:
    assert run([*demo, *FAST, "--out", "a"]) == 0
    store = Store(here / "a")
    (clean,) = (here / "a" / "cells").glob("clean-*.pictures")
    before = clean.stat().st_mtime_ns
    assert run([*demo, "--attack", "bim", *BOTH, "--out", "a"]) == 0
    (again,) = (here / "a" / "cells").glob("clean-*.pictures")
    assert again == clean and clean.stat().st_mtime_ns == before
    attacked = [cell for cell in store.asked() if isinstance(cell.task, WhiteBox)]
    assert len(attacked) == 6 and len(list((here / "a" / "cells").glob("*.pictures"))) == 6 + 1
    for cell in attacked:
        pictures, shown = store.pictures(cell), store.clean_pictures(cell.images)
        assert pictures is not None and pictures.members is not None and shown is not None
        assert len(pictures.index) == len(pictures.adversarial) == SHOWN and pictures.index.max() < LOOKED_AT
        assert pictures.members.shape == (SHOWN, 2)
        records = store.read(cell).set_index("index").loc[pictures.index]
        assert records["attacked"].all()
        change = np.abs(pictures.adversarial.astype(float) - shown[pictures.index]).max(axis=(1, 2, 3))
        assert change == pytest.approx(records["linf"].to_numpy(), abs=2e-3), "half precision"
        assert "image_adversarial" not in pd.read_parquet(store.path(cell))


# --- when things go wrong ---


def test_a_failing_attack_is_a_row_and_the_others_run(
    demo: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    original = torchattacks_backend.fgsm

    def broken(*arguments: Any) -> Tensor:
        raise ValueError("no [/good]\nat all")

    monkeypatch.setattr(torchattacks_backend, "fgsm", broken)
    command = [*demo, "--attack", "fgsm", "--attack", "bim", "--tier", "strict", "--out", "a"]
    assert run(command) == 1
    message = capfd.readouterr().err
    assert "failed: ValueError: no [/good] at all" in message
    assert message.splitlines()[-1].startswith("adp-bench: 1 of 2 cells failed; a/table.csv")
    table = _table(here / "a").set_index("attack")
    assert table.loc["fgsm", "flags"] == "failed: ValueError: no [/good] at all" and table.loc["fgsm", "samples"] == 0
    assert table.loc["bim", "samples"] == 30 and table.loc["fgsm", "accuracy"] == ""
    assert "Warning, digits" in (here / "a" / "table.md").read_text()
    kept = _cells(here / "a")
    monkeypatch.setattr(torchattacks_backend, "fgsm", original)
    assert run(command) == 0
    assert (_table(here / "a")["samples"] == 30).all()
    assert kept.items() <= _cells(here / "a").items()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_out_of_memory_halves_the_batch_and_says_so(
    error: Exception,
    demo: list[str],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    original = torchattacks_backend.fgsm
    sizes: list[int] = []

    def greedy(model: nn.Module, images: Tensor, labels: Tensor, attack: Any) -> Tensor:
        if len(images) > 3:
            raise error
        sizes.append(len(images))
        return original(model, images, labels, attack)

    monkeypatch.setattr(torchattacks_backend, "fgsm", greedy)
    command = [*demo, "--attack", "fgsm", "--tier", "paper", "--out"]
    assert run([*command, "a"]) == 0
    assert re.search(r"out of memory with 10 images: .*\b5$", capfd.readouterr().err, re.MULTILINE)
    assert sum(sizes) == 30 and max(sizes) <= 3
    row = _table(here / "a").iloc[0]
    assert row["flags"] == "out-of-memory: 30 images ran in batches smaller than 10"
    monkeypatch.setattr(torchattacks_backend, "fgsm", original)
    assert run([*command, "b"]) == 0
    assert _table(here / "b").loc[0, "accuracy"] == row["accuracy"]


def test_not_even_one_image_fits_is_a_failure(demo: list[str], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*arguments: Any) -> Tensor:
        raise MemoryError("no room")

    monkeypatch.setattr(torchattacks_backend, "fgsm", greedy)
    assert run([*demo, "--attack", "fgsm", "--tier", "paper", "--out", "a"]) == 1
    assert _table(here / "a").loc[0, "flags"] == "failed: MemoryError: no room"


def test_a_damaged_cell_is_refused_by_a_report_and_measured_anew_by_a_run(
    demo: list[str], here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [*demo, "--attack", "fgsm", "--tier", "strict", "--out", "a"]
    assert run(command) == 0
    (path,) = (here / "a" / "cells").glob("*.parquet")
    wanted = pd.read_csv("a/table.csv").drop(columns="seconds")
    path.write_bytes(path.read_bytes()[:100])
    capfd.readouterr()
    assert run(["report", "a"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert path.name in line and "damaged" in line
    assert run(command) == 0
    assert path.name in capfd.readouterr().err and path.with_suffix(".damaged").is_file()
    pd.testing.assert_frame_equal(pd.read_csv("a/table.csv").drop(columns="seconds"), wanted)


def test_an_interrupt_ends_with_130_and_keeps_what_is_done(
    demo: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    original = torchattacks_backend.bim
    calls: list[int] = []

    def interrupted(*arguments: Any) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    command = [*demo, "--attack", "fgsm", "--attack", "bim", "--tier", "strict", "--out"]
    monkeypatch.setattr(torchattacks_backend, "bim", interrupted)
    assert run([*command, "a"]) == 130
    assert capfd.readouterr().err.splitlines()[-1].startswith("adp-bench: interrupted")
    kept = _cells(here / "a")
    assert len(kept) == 1 and len(list((here / "a" / "cells" / "unfinished").rglob("*.parquet"))) == 2
    assert run([*command, "a"]) == 0
    assert len(calls) == 4, "only the third batch was attacked again"
    assert kept.items() <= _cells(here / "a").items()
    assert run([*command, "b"]) == 0
    assert _untimed(here / "a") == _untimed(here / "b")


def test_a_run_that_was_stopped_while_training_goes_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    def stopped(*arguments: Any, **named: Any) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmark.ensembles.finding.train_ensemble", stopped)
    command = ["run", "demo", "--attack", "fgsm", "--samples", "10", "--tier", "strict", "--out", "a", "--defense"]
    assert run([*command, "baseline"]) == 130
    assert run([*command, str(checkpoint)]) == 0


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_ends_with_the_same_table(kills: int, demo: list[str], here: Path) -> None:
    command = [*demo, *FAST, "--attack", "cw(c=5,steps=40)", "--attack", "jsma(gamma=0.3)", "--threads", "1", "--out"]
    assert run([*command, "whole"]) == 0
    total = len(list((here / "whole" / "cells").glob("*.parquet")))
    folder = here / "broken"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    killed = 0
    for kill in range(kills):
        goal = 1 + kill * (total - 1) // kills  # so many files in the folder of cells, progress included
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmark.cli", *command, "broken"],
            cwd=here, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while process.poll() is None and len(list(folder.rglob("*.parquet"))) < goal:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed == kills, "every kill came in the middle"
    kept = _cells(folder)
    assert len(kept) < total
    assert run([*command, "broken"]) == 0
    assert kept.items() <= _cells(folder).items(), "what was done was not done again"
    assert _untimed(folder) == _untimed(here / "whole")
    for name in ("table.md", "table.tex"):
        assert (folder / name).read_bytes() == (here / "whole" / name).read_bytes()
    assert not list(folder.rglob("unfinished/*/*"))


# --- what a run says ---


def test_a_run_says_where_it_is_and_what_it_left_out(
    checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "demo", "--defense", str(checkpoint), "--attack", "fgsm", "--tier", "strict", "--device", "cpu"]
    assert run(command) == 0
    lines = capfd.readouterr().err.splitlines()
    assert any(re.search(r"fgsm on the first 200 of \d+ images", line) for line in lines)
    assert any(re.match(r"\[1/1\] small · fgsm\(eps=0\.1\) · strict: \d+\.\d % \(\d+", line) for line in lines)
    manifest = json.loads((here / "results/runs/demo/manifest.json").read_text())
    assert manifest["preset"] == "demo" and {"torch", "python"} <= manifest["versions"].keys()
    assert manifest["machine"]["cores"] >= 1
    assert manifest["cells"][0]["weights"] and manifest["cells"][0]["data_checksum"]


def test_black_box_numbers_say_what_their_images_were_made_on(demo: list[str], checkpoint: Path, here: Path) -> None:
    small = EnsembleRequest("baseline", "digits", "mini-resnet(width=2)", members=1, seed=5)
    other = train_ensemble(small, {"epochs": 2}, out=here / "other")
    whole = load_preset("demo")
    section = BlackBoxSection((parse_attack("fgsm(eps=0.2)"),), Amount(10, 10))
    grid = replace(whole.grids[0], defenses=(str(checkpoint),), sections=(section,))
    request = Request(
        replace(whole, grids=(grid,)), 10, (0,), torch.device("cpu"), here / "a", "", surrogate=str(other)
    )
    run_request(request, RunDisplay())
    words = "Black-box images were made on other: fast recipe, 2 epochs, seed 5."
    assert words in (here / "a" / "table.md").read_text() and words in (here / "a" / "report.html").read_text()
    assert run([*demo, "--attack", "fgsm", "--tier", "strict", "--out", "a"]) == 0
    assert words in (here / "a" / "table.md").read_text(), "extending the run does not lose it"


def test_a_run_ends_with_what_speaks_against_its_numbers(
    checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "demo", "--defense", str(checkpoint), "--samples", "60", "--tier", "strict", "--attack"]
    assert run([*command, "fgsm(eps=0.2)"]) == 0
    assert re.search(r"^checks: no warnings from \d+ checks on 1 cell; not possible", capfd.readouterr().err, re.M)
    assert run([*command, "pgd(eps=0.2,step_size=0.000001)"]) == 0
    said = capfd.readouterr().err
    assert re.search(r"^checks: 1 warning from \d+ checks on 2 cells", said, re.M)
    assert re.search(r"^  single-step-wins, digits · small · PGD.* · strict: .*FGSM.* Suspect", said, re.M)


def test_all_samples_are_the_papers_number(checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["run", "demo", "--defense", str(checkpoint), "--attack", "fgsm", "--tier", "strict", "--samples", "all"]
    assert run(command) == 0
    assert "instead of" not in capfd.readouterr().err
    from benchmark import datasets

    assert _table(here / "results/runs/demo").loc[0, "samples"] == len(datasets.load("digits").test)


def test_several_seeds_give_mean_and_spread(demo: list[str], here: Path) -> None:
    attack = ["--attack", "pgd(eps=0.12)", "--tier", "strict", "--out", "a"]
    assert run([*demo, *attack, "--seeds", "0,1,2"]) == 0
    table = _table(here / "a")
    assert table["seed"].tolist() == [0, 1, 2]
    expected = f"{table['accuracy'].mean():.1f} ± {table['accuracy'].std(ddof=1):.1f}"
    assert expected in (here / "a" / "table.md").read_text()


def test_a_missing_ensemble_is_trained_first_and_the_time_is_said_before(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], checkpoint: Path
) -> None:
    said: list[str] = []

    def trained(*arguments: Any, **named: Any) -> Path:
        said.append(capfd.readouterr().err)
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmark.ensembles.finding.train_ensemble", trained)
    assert run(["run", "demo", "--defense", "adp-2-0", "--attack", "fgsm", "--samples", "5"]) == 130
    assert re.search(r"adp-2-0 is not trained yet: training 3 × mini-resnet on digits, about \d+ ", said[0])
