"""A dataset and a network of the user's, from training to the report: every tier, few classes, names of classes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmark import datasets
from benchmark.cells.store import Store
from benchmark.cli import run
from benchmark.findings.results import read_results
from benchmark.reports.figures.strips import strip_figures
from defenses.training import recipes

NETWORK = """
from torch import nn


class VGG(nn.Module):
    def __init__(self, shape, classes, width: int = 4):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(4),
        )
        self.head = nn.Linear(width * (shape[1] // 4) * (shape[2] // 4), classes)

    def forward(self, images):
        return self.head(self.body(images).flatten(1))
"""
NAMES = ["red", "green", "blue", "grey"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipes, "ENOUGH_STEPS", 30)
    Path("mine.py").write_text(NETWORK)


def _save(classes: int, seed: int = 0) -> None:
    """Noise in which one channel, or none, is brighter."""
    random = np.random.default_rng(seed)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count) % classes
        images = random.integers(0, 120, (count, 16, 16, 3))
        for channel in range(3):
            images[labels == channel, :, :, channel] += 100
        return images.astype(np.uint8), labels

    (x_train, y_train), (x_test, y_test) = part(128), part(12)
    arrays = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    np.savez("data.npz", **arrays, class_names=np.array(NAMES[:classes]))


def _preset(members: int, defense: str) -> None:
    Path("mine.toml").write_text(
        "[[grid]]\n"
        'dataset = "data.npz"\n'
        'network = "mine.py:VGG(width=8)"\n'
        f"members = {members}\n"
        f'defenses = ["baseline", "{defense}"]\n'
        'tiers = ["paper", "strict", "strong"]\n'
        'attacks = ["none", { spec = "pgd(eps=0.1,steps=3)", samples = 6 }]\n'
        "[grid.strong]\n"
        "samples = 4\n"
        'suite = "quick"\n'
    )


@pytest.mark.parametrize(
    ("classes", "members", "defense"),
    [
        (4, 3, "adp-2-0.5"),
        pytest.param(3, 2, "adp-2-0.5", marks=pytest.mark.slow),
        pytest.param(2, 2, "adp-2-0", marks=pytest.mark.slow),
    ],
)
def test_images_and_a_network_of_the_users_go_from_training_to_the_report(
    classes: int, members: int, defense: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _save(classes)
    _preset(members, defense)
    assert run(["run", "mine.toml", "--threads", "1"]) == 0
    assert "128 training and 12 test images of 3×16×16" in " ".join(capsys.readouterr().err.split())
    store = Store(Path("results/runs/mine"))
    table = pd.read_csv(store.folder / "table.csv")
    assert set(table["tier"]) >= {"paper", "strict", "strong"} and (table["samples"] > 0).all()
    assert set(table["dataset"]) == {"data.npz"} and set(table["network"]) == {"mine.py:VGG(width=8)"}
    assert (store.folder / "report.html").is_file()
    assert json.loads((store.folder / "manifest.json").read_text())["class_names"] == {"data.npz": NAMES[:classes]}
    results = read_results(store)
    assert results.class_name("data.npz", 1) == "green" and results.class_name("other", 1) == "1"
    assert strip_figures(results)
    ensembles = sorted(Path("results/ensembles").glob(f"data.npz-{datasets.load('data.npz').checksum[:8]}/*"))
    adp, baseline = (f"{folder}:mine.py:VGG(width=8)" for folder in ensembles)
    words = ["--dataset", "data.npz", "--attack", "fgsm(eps=0.1)", "--samples", "6", "--out", "compared"]
    assert run(["compare", adp, "--against", baseline, *words]) == 0
    assert (Path("compared") / "comparison.md").is_file()


def test_cells_of_a_changed_file_are_not_mixed_with_those_of_before(capsys: pytest.CaptureFixture[str]) -> None:
    _save(4)
    words = ["run", "demo", "--dataset", "data.npz", "--network", "mine.py:VGG", "--defense", "baseline"]
    words += ["--tier", "strict", "--samples", "6", "--out", "out"]
    assert run([*words, "--attack", "fgsm(eps=0.1)"]) == 0
    assert run([*words, "--attack", "pgd(eps=0.1,steps=3)"]) == 0
    before = Store(Path("out")).asked()
    assert len({cell.images.checksum for cell in before}) == 1
    _save(4, seed=1)
    assert run([*words, "--attack", "fgsm(eps=0.1)"]) == 0
    after = Store(Path("out")).asked()
    assert {cell.images.checksum for cell in after} == {datasets.load("data.npz").checksum}
    assert {cell.images.checksum for cell in after} != {cell.images.checksum for cell in before}
    assert "older version of data" in " ".join(capsys.readouterr().err.split())


def test_without_a_training_part_only_trained_models_are_evaluated() -> None:
    _save(4)
    network = "mine.py:VGG(width=8)"
    assert run(["train", "baseline", "--dataset", "data.npz", "--network", network, "--out", "trained"]) == 0
    with np.load("data.npz") as whole:
        np.savez("test.npz", **{key: whole[key] for key in ("x_test", "y_test", "class_names")})
    words = ["run", "demo", "--dataset", "test.npz", "--attack", "fgsm(eps=0.1)", "--tier", "strict", "--samples", "6"]
    assert run([*words, "--defense", "baseline"]) == 2
    Path("models.py").write_text(
        "from defenses import load_checkpoint\n"
        f"def load():\n    return load_checkpoint('trained', network_file={network!r})\n"
    )
    assert run([*words, "--defense", "models.py:load"]) == 0


def test_a_name_in_a_run_folder_opens_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("sprung.py").write_text("from pathlib import Path\nPath('sprung').touch()\ndef load(): pass\n")
    with pytest.raises(ValueError, match="--dataset"):
        datasets.load_named("sprung.py:load")
    assert not Path("sprung").exists()


@pytest.mark.slow
def test_a_vgg_of_the_users_is_trained_and_attacked_on_cifar10() -> None:
    if not all(row["present"] for row in datasets.describe() if row["name"] == "cifar10"):
        pytest.skip("CIFAR-10 is not here")
    words = ["--dataset", "cifar10", "--network", "mine.py:VGG(width=8)", "--epochs", "1", "--train-images", "500"]
    assert run(["train", "adp-2-0.5", *words, "--out", "vgg", "--threads", "1"]) == 0
    assert run(["train", "baseline", *words, "--out", "plain", "--threads", "1"]) == 0
    words = ["--attack", "pgd(eps=0.01)", "--samples", "10", "--threads", "1", "--out", "out"]
    for tier in ("paper", "strict", "strong"):
        words += ["--tier", tier]
    assert run(["run", "cifar10-whitebox", "--defense", "vgg:mine.py:VGG(width=8)", *words]) == 0
    assert set(pd.read_csv("out/table.csv")["tier"]) == {"paper", "strict", "strong"}
    assert Path("out/report.html").is_file()
    vgg, plain = (f"{folder}:mine.py:VGG(width=8)" for folder in ("vgg", "plain"))
    words = ["--dataset", "cifar10", "--attack", "fgsm(eps=0.01)", "--samples", "10", "--out", "compared"]
    assert run(["compare", vgg, "--against", plain, *words]) == 0
    assert {"none", "fgsm"} == set(pd.read_csv("compared/comparison.csv")["attack"])
