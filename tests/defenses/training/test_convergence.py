"""A training that has plainly not converged is told from one that has, by what its checkpoint says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark import datasets, evaluate
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.training import train_ensemble
from benchmark.findings.checks import TRAINING
from defenses.checkpoints import Provenance, load_checkpoint, read_provenance
from defenses.training.convergence import curve_scores, doubts

GOOD = {
    "test_accuracy": 0.95,
    "test_member_accuracy": [0.93, 0.94, 0.92],
    "train_accuracy": 0.9,
    "train_accuracy_before": 0.89,
}


def _origin(classes: int = 10, **scores: Any) -> Provenance:
    return replace(Provenance("baseline", "digits", "mini-resnet", 3, (1, 8, 8), classes), scores={**GOOD, **scores})


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({"train_accuracy": 0.9, "train_accuracy_before": 0.84}, "still rose from 84.0% to 90.0%"),
        ({"test_member_accuracy": [0.93, 0.11, 0.92]}, "member 2 is right on 11.0%"),
        ({"test_accuracy": 0.6}, "its members on 93.0% on average"),
    ],
)
def test_each_sign_is_told(scores: dict[str, Any], words: str) -> None:
    assert words in str(doubts(_origin(**scores)))


@pytest.mark.parametrize(
    "scores",
    [
        {},
        {"train_accuracy_before": 0.851},
        {"train_accuracy": 0.98, "train_accuracy_before": 0.91},  # MNIST after two epochs
        {"test_accuracy": 0.5, "test_member_accuracy": [0.3, 0.4, 0.35]},  # adversarially trained
        {"test_accuracy": 0.89},
    ],
)
def test_what_is_usual_is_not(scores: dict[str, Any]) -> None:
    assert doubts(_origin(**scores)) == ""


def test_chance_depends_on_the_number_of_classes() -> None:
    assert doubts(_origin(2, test_member_accuracy=[0.54] * 3, test_accuracy=0.54))
    assert not doubts(_origin(10, test_member_accuracy=[0.54] * 3, test_accuracy=0.54))


def test_a_checkpoint_of_an_older_version_says_nothing() -> None:
    old = {name: value for name, value in GOOD.items() if not name.startswith("train_accuracy")}
    assert doubts(replace(_origin(), scores=old)) is None
    assert doubts(replace(_origin(), scores={})) is None


def test_tenths_of_the_epochs_are_compared() -> None:
    history = [{"epoch": epoch + 1, "train_accuracy": epoch / 100} for epoch in range(40)]
    assert curve_scores(history, 40) == {"train_accuracy": 0.375, "train_accuracy_before": 0.335}
    assert curve_scores(history[:1], 1) == {"train_accuracy": 0.0}
    two_members = _rows({1: 0.8, 2: 0.81, 3: 0.3, 4: 0.7})
    assert curve_scores(two_members, 2) == {"train_accuracy": 0.7, "train_accuracy_before": 0.3}


def test_a_member_that_was_frozen_early_has_a_curve_of_its_own() -> None:
    """Four epochs for each of two members; the first one was frozen after two."""
    history = _rows({1: 0.2, 2: 0.9, 5: 0.5, 6: 0.6, 7: 0.7, 8: 0.75})
    assert curve_scores(history, 4) == {"train_accuracy": 0.9, "train_accuracy_before": 0.2}
    assert curve_scores(_rows({1: 0.9, 2: 0.91, 5: 0.5, 6: 0.6, 7: 0.7, 8: 0.75}), 4)["train_accuracy_before"] == 0.7


def _rows(accuracies: dict[int, float]) -> list[dict[str, float]]:
    return [{"epoch": epoch, "train_accuracy": value} for epoch, value in accuracies.items()]


def _trained(tmp_path: Path, epochs: int) -> Path:
    request = EnsembleRequest("adp-2-0.5", "digits", "mini-resnet(width=8)", members=2)
    return train_ensemble(request, {"epochs": epochs}, tmp_path, "cpu", 1)


def test_a_training_that_was_stopped_early_is_flagged_and_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: two epochs of ADP."""
    path = _trained(tmp_path, 2)
    assert doubts(read_provenance(path))
    assert "warning: training has not converged" in " ".join(capsys.readouterr().err.split())
    test = datasets.load("digits").test
    table = evaluate(load_checkpoint(path), test.images(slice(20)), test.labels[:20], ["fgsm(eps=0.1)"])
    assert table["flags"].str.contains(TRAINING).all()


def test_a_whole_training_is_not_flagged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _trained(tmp_path, 12)
    assert doubts(read_provenance(path)) == ""
    assert "warning" not in capsys.readouterr().err
    test = datasets.load("digits").test
    table = evaluate(load_checkpoint(path), test.images(slice(20)), test.labels[:20], ["fgsm(eps=0.1)"])
    assert not table["flags"].str.contains(TRAINING).any()
