"""Attacks that others wrote run, resume and compare like ours: from a library, from a file, in a preset."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from benchmark.cells.store import Store
from benchmark.cli import run

MINE = """
import torch

def attack(model, images, labels, eps: float = 0.1, norm: str = "linf"):
    images = images.clone().requires_grad_()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    return (images + eps * images.grad.sign()).detach().clamp(0, 1)
"""
PRESET = """
title = "Mine"

[[grid]]
dataset = "digits"
network = "mini-resnet(width=4)"
members = 2
tiers = ["strict"]
defenses = ["baseline"]
attacks = [
    {{ spec = "torchattacks:BIM(eps=0.1,steps=2)", samples = 20 }},
    {{ spec = "{path}:attack(eps=0.1)", samples = 20 }},
]
"""


@pytest.fixture
def mine(here: Path) -> Path:
    (here / "mine.py").write_text(MINE)
    return here / "mine.py"


def _attacks(folder: str) -> pd.DataFrame:
    table = pd.read_csv(Path(folder) / "table.csv")
    return table[table["samples"] > 0].set_index("attack")


def test_a_run_has_them_in_its_table_and_resumes(
    mine: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "demo", "--defense", str(checkpoint), "--samples", "20", "--out", "a", "--tier", "strict"]
    command += ["--attack", "mine.py:attack(eps=0.1)", "--attack", "art:DeepFool(max_iter=5)", "--attack", "fgsm"]
    command += ["--attack", "torchattacks:GN(std=0.3,bound=none)"]
    assert run([*command, "--plan"]) == 0
    assert re.search(r"mine\.py:attack\(eps=0\.1\) · strict +20 +unknown", capsys.readouterr().out)
    assert run(command) == 0
    table = _attacks("a")
    assert {"attack", "DeepFool", "fgsm"} <= set(table.index)
    assert table["accuracy"]["attack"] == table["accuracy"]["fgsm"] < table["clean_accuracy"]["fgsm"]
    assert table["library"]["DeepFool"].startswith("art ") and table["parameters"]["DeepFool"] == "max_iter=5"
    before = (Path("a") / "table.csv").read_bytes()
    mine.write_text("# the same attack\n" + MINE)
    assert run(command) == 0
    assert (Path("a") / "table.csv").read_bytes() == before, "nothing ran again"
    assert run(["report", "a"]) == 0


def test_a_crosscheck_puts_them_beside_ours(mine: Path, checkpoint: Path) -> None:
    command = ["crosscheck", "--defense", str(checkpoint), "--samples", "20", "--out", "a"]
    command += ["--attack", "fgsm(eps=0.1)", "--attack", "mine.py:attack(eps=0.1)"]
    assert run(command) == 0
    table = pd.read_csv("a/crosscheck.csv").set_index("attack")
    assert table.loc["attack", "relation"] == "same images"


def test_a_preset_and_a_comparison_have_them(mine: Path, checkpoint: Path, robust_checkpoint: Path) -> None:
    Path("mine.toml").write_text(PRESET.format(path=mine))
    assert run(["run", "mine.toml", "--defense", str(checkpoint), "--out", "a"]) == 0
    assert {"BIM", "attack"} <= set(_attacks("a").index)
    command = ["compare", str(checkpoint), "--against", str(robust_checkpoint), "--samples", "20", "--out", "b"]
    assert run([*command, "--tier", "strict", "--attack", "torchattacks:BIM(eps=0.1,steps=2)"]) == 0
    tasks = {cell.task.title for cell in Store(Path("b")).asked()}
    assert "torchattacks:BIM(eps=0.1,steps=2) · strict" in tasks
