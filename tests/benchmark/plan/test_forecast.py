"""A plan lists what a run would do and what it would cost, from counts that hold; it runs and writes nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmark.cells.store import Store
from benchmark.cli import run
from benchmark.evaluations.worst_case import WorstCase, long_stages
from benchmark.plan.costs import gradients

pytestmark = pytest.mark.usefixtures("here")

EXACT = ["fgsm", "bim(eps=0.1)", "pgd(eps=0.1,steps=4)", "mim(eps=0.1)"]
EXACT += ["cw(c=1,steps=20,abort_early=false)", "ead(c=1,steps=20)"]


@pytest.fixture
def demo(checkpoint: Path) -> list[str]:
    return ["run", "demo", "--defense", str(checkpoint), "--samples", "20"]


def test_a_plan_lists_the_cells_that_the_run_then_has(
    demo: list[str], here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [*demo, "--attack", "none", "--attack", "fgsm", "--attack", "pgd(eps=0.1)", "--out", "a"]
    command += ["--tier", "paper", "--tier", "strict"]
    assert run([*command, "--plan"]) == 0
    planned = capfd.readouterr().out
    assert list(here.iterdir()) == [], "nothing is written"
    assert re.search(r"small · pgd\(eps=0\.1\) · strict +20 +10 +210 ", planned), "images, gradients each, in all"
    assert re.search(r"^measured here: 2 × mini-resnet\(width=4\) on digits: [\d,]+ gradients/s", planned, re.M)
    assert "training: 0 ensembles" in planned and "to be trained" not in planned
    assert run(command) == 0
    titles = [cell.title for cell in Store(here / "a").asked()]
    assert all(title in planned for title in titles)
    assert f"\n{len(titles)} cells to run: " in planned
    before = sorted((path, path.stat().st_mtime_ns) for path in here.rglob("*"))
    capfd.readouterr()
    assert run([*command, "--plan", "--attack", "bim"]) == 0
    again = capfd.readouterr().out
    assert f"\n2 cells to run, {len(titles)} more are already done: " in again
    assert "· bim(" in again and "· fgsm(" not in again
    assert sorted((path, path.stat().st_mtime_ns) for path in here.rglob("*")) == before


def test_a_plan_counts_an_attack_once_that_is_the_same_in_both_tiers(
    demo: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    command = [*demo, "--attack", "ead(c=1,steps=20)", "--plan"]
    assert run([*command, "--tier", "paper", "--tier", "strict"]) == 0
    assert re.search(r"paper +20 +20 +410 .*\n.*strict +20 +0 +0 ", capfd.readouterr().out)
    assert run([*command, "--tier", "strict"]) == 0
    assert re.search(r"strict +20 +20 +410 ", capfd.readouterr().out)


def test_what_has_to_be_trained_is_listed_with_its_time_and_not_trained(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "demo", "--defense", "adp-2-0", "--attack", "fgsm", "--seeds", "0,1", "--tier", "strict"]
    assert run([*command, "--plan"]) == 0
    planned = capfd.readouterr().out
    assert re.findall(r"^  adp-2-0 +digits +seed (\d) +\d+ (?:s|min|h)", planned, re.M) == ["0", "1"]
    assert re.search(r"training: 2 ensembles, \d+ (s|min)", planned)
    assert list(here.iterdir()) == []


def test_planned_gradients_are_those_that_attacks_then_take(demo: list[str], here: Path) -> None:
    chosen = [word for attack in EXACT for word in ("--attack", attack)]
    assert run([*demo, *chosen, "--tier", "paper", "--out", "a"]) == 0
    store = Store(here / "a")
    for cell in store.asked():
        assert gradients(cell) == store.read(cell)["backwards"].mean(), cell.title


def test_a_worst_case_is_planned_as_if_no_image_were_fooled(demo: list[str], here: Path) -> None:
    assert run([*demo, "--attack", "fgsm(eps=0.001)", "--tier", "strong", "--out", "a"]) == 0
    store = Store(here / "a")
    cell = store.asked()[0]
    assert isinstance(cell.task, WorstCase)
    records = store.read(cell)
    whole = records[records["attacked"] & records["correct"]]  # went through every stage
    assert len(whole)
    met = long_stages(whole).groupby("stage")
    assert (met.size() == len(whole)).all() and len(met) == len(cell.task.stages)
    taken = 0.0
    for number, stage in enumerate(cell.task.stages):
        part = met.get_group(number)
        passes = 0.5 * part["forwards"] if stage.named.name == "square" else part["backwards"]
        taken += passes.mean() / (1 if stage.member is None else cell.ensemble.members)
    assert gradients(cell) == pytest.approx(taken, rel=0.1)


def test_a_surrogate_that_is_not_trained_yet_is_not_the_defense(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "demo", "--plan", "--defense", "baseline", "--samples", "10"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert sum(line.split()[:2] == ["baseline", "digits"] for line in lines) == 2, "the defense and the surrogate"


def test_a_batch_larger_than_any_memory_is_planned_all_the_same(demo: list[str]) -> None:
    asked = [*demo, "--attack", "fgsm", "--tier", "strict", "--plan", "--batch-size"]
    assert run([*asked, str(2**31 - 1)]) == 0
    assert run([*asked, str(2**31)]) == 2, "no batch has so many images"
