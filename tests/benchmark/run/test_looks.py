"""Runs that look after every batch: rows stop when they are decided, and go on later from where they were."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from benchmark import datasets
from benchmark.cells.cell import rows_in
from benchmark.cells.store import Store
from benchmark.cli import run
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings.sequential import decide, interval
from benchmark.harness.prepared import predict, prepared
from defenses import load_checkpoint

pytestmark = pytest.mark.usefixtures("here")

ATTACK = ["--attack", "fgsm(eps=0.1)", "--tier", "strict", "--batch-size", "20"]


def _compare(one: Path, other: Path, *more: str) -> int:
    return run(["compare", f"A={one}", "--against", f"B={other}", *ATTACK, "--until", "decided", "--out", "a", *more])


def _decisions() -> pd.DataFrame:
    return pd.read_csv("a/decisions.csv")


def _outcomes(defense: str) -> tuple[WhiteBox, pd.DataFrame]:
    store = Store(Path("a"))
    (cell,) = [c for c in store.asked() if isinstance(c.task, WhiteBox) and c.ensemble.defense == defense]
    assert isinstance(cell.task, WhiteBox) and cell.images.order == "shuffled"
    return cell.task, store.read(cell)


def test_two_very_different_models_are_decided_early(
    checkpoint: Path, robust_checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _compare(robust_checkpoint, checkpoint, "--samples", "all") == 0
    row = _decisions().iloc[0]
    assert row["verdict"] == "candidate leads"
    assert row["images"] <= row["run"] < row["planned"] == 360 and row["run"] % 20 == 0
    first, second = (_outcomes(name)[1]["correct"].to_numpy() for name in "AB")
    assert len(first) == len(second) == row["run"]
    found = decide(first, second, 0.05, 0.02)
    assert (found.verdict, found.images) == ("first leads", row["images"])
    known = interval(first.astype(float) - second, low=-1.0)
    assert [row["ci_low"], row["ci_high"]] == pytest.approx([100 * known.low, 100 * known.high])
    printed = capfd.readouterr().out
    assert "A leads B in 1 of 1 attack setting" in printed and "saved" in printed
    text = Path("a/comparison.md").read_text()
    assert "A leads B" in text and f"| {row['images']} | {row['run']} | 360 |" in text
    compared = pd.read_csv("a/comparison.csv")
    attacked = compared[compared["tier"] == "strict"]
    assert attacked["p"].isna().all() and attacked["p_holm"].isna().all(), "no test for a fixed number of images"
    assert "A leads B" in Path("a/report.html").read_text()
    assert "**" not in Path("a/table.md").read_text(), "bold is significance by a test for a fixed number of images"


def test_images_come_in_the_random_order_and_kept_ones_verify(checkpoint: Path) -> None:
    command = ["run", "demo", "--defense", f"A={checkpoint}", *ATTACK, "--samples", "40", "--until", "±3"]
    assert run([*command, "--keep-images", "--out", "a"]) == 0
    test = datasets.load("digits").test
    rows = rows_in("shuffled", len(test))
    assert sorted(rows) == list(range(len(test))) and list(rows) != sorted(rows)
    _, records = _outcomes("A")
    assert records["index"].tolist() == list(range(40))
    np.testing.assert_array_equal(records["label"], test.labels[torch.from_numpy(rows[:40])])
    ensemble = load_checkpoint(checkpoint)
    with prepared(ensemble):
        clean = predict(ensemble, test.images()[torch.from_numpy(rows[:40])], 20)
    np.testing.assert_array_equal(records["clean_prediction"], clean)
    assert run(["verify", "a", "--model", str(checkpoint)]) == 0
    store = Store(Path("a"))
    (cell,) = [c for c in store.asked() if isinstance(c.task, WhiteBox)]
    pictures, shown = store.pictures(cell), store.clean_pictures(cell.images)
    assert pictures is not None and shown is not None
    change = np.abs(pictures.adversarial.astype(float) - shown[pictures.index]).max(axis=(1, 2, 3))
    assert change == pytest.approx(records["linf"].to_numpy()[pictures.index], abs=2e-3), "half precision"


def test_a_tiny_budget_leaves_it_open_and_the_same_command_goes_on(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    twin = Path("twin")
    train = ["train", "baseline", "--dataset", "digits", "--network", "mini-resnet(width=4)", "--members", "2"]
    assert run([*train, "--epochs", "4", "--seed", "1", "--out", str(twin)]) == 0
    assert _compare(checkpoint, twin, "--budget", "0.001s", "--margin", "1") == 0
    assert "stay open" in (said := capfd.readouterr()).out and "budget" in said.err
    row = _decisions().iloc[0]
    assert (row["verdict"], row["run"], row["planned"]) == ("open", 20, 200)
    before = _outcomes("A")[1]["adversarial_prediction"].tolist()

    made: list[int] = []
    original = WhiteBox.batch

    def counted(self: WhiteBox, subject: object, span: tuple[int, int], seed: int) -> pd.DataFrame:
        made.append(span[0])
        return original(self, subject, span, seed)  # type: ignore[arg-type]

    monkeypatch.setattr(WhiteBox, "batch", counted)
    assert _compare(checkpoint, twin, "--margin", "1", "--samples", "60") == 0
    row = _decisions().iloc[0]
    assert (row["run"], row["planned"]) == (60, 60)
    assert sorted(made) == [20, 20, 40, 40], "what was done is not done again"
    assert _outcomes("A")[1]["adversarial_prediction"].tolist()[:20] == before
    made.clear()
    assert _compare(checkpoint, twin, "--margin", "1", "--samples", "60") == 0 and not made


def test_a_run_stops_when_every_interval_is_narrow(checkpoint: Path) -> None:
    command = ["run", "demo", "--defense", f"A={checkpoint}", *ATTACK, "--samples", "all", "--out", "a", "--until"]
    assert run([*command, "±20"]) == 0
    wide = _outcomes("A")[1]
    found, sooner = interval(wide["correct"]), interval(wide["correct"][:-20])
    assert 50 * (found.high - found.low) <= 20 < 50 * (sooner.high - sooner.low)
    table = pd.read_csv("a/table.csv")
    row = table[table["tier"] == "strict"].iloc[0]
    assert [row["ci_low"], row["ci_high"]] == pytest.approx([100 * found.low, 100 * found.high])
    assert run([*command, "+-10"]) == 0
    assert len(_outcomes("A")[1]) > len(wide)


@pytest.mark.parametrize(
    "options",
    [
        ["--until", "maybe"],
        ["--until", "decided", "--margin", "-1"],
        ["--until", "decided", "--margin", "nan"],
        ["--until", "decided", "--alpha", "2"],
        ["--until", "decided", "--budget", "soon"],
        ["--until", "decided", "--seeds", "0,1"],
        ["--budget", "2h"],
        ["--margin", "2"],
    ],
    ids=" ".join,
)
def test_bad_values_are_one_line_and_exit_code_2(options: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "adp", "--against", "baseline", *options]) == 2
    said = capfd.readouterr()
    assert said.out == "" and re.fullmatch(r"adp-bench: [^\n]+\n", said.err)


@pytest.mark.parametrize("until", ["decided", "2", "±0", "±60", "±x"])
def test_a_bad_width_is_one_line_and_exit_code_2(until: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "demo", "--until", until]) == 2
    assert re.fullmatch(r"adp-bench: [^\n]+\n", capfd.readouterr().err)


def test_a_folder_in_file_order_is_not_continued_in_random_order(
    checkpoint: Path, robust_checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fixed = ["compare", f"A={checkpoint}", "--against", f"B={robust_checkpoint}", *ATTACK, "--samples", "20"]
    assert run([*fixed, "--out", "a"]) == 0
    assert _compare(checkpoint, robust_checkpoint) == 2
    assert "choose another --out" in capfd.readouterr().err
